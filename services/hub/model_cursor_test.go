package hub_test

import "slices"

// cursor is a reader's place in one partition.
type cursor struct {
	partition *plainPartition
	lives     []*life // lives that what was delivered so far is consistent with
	pos       int64
	epoch     int32 // of the last record delivered, -1 unknown
	fresh     bool  // nothing came yet: a partition that was added begins at its oldest record
	asked     int64 // a start gap is due from here, -1: none
	reset     bool  // truncated or re-created meanwhile
	stop      int64 // first offset not to be delivered, -1: none
	conflated int64 // where a conflation ends that is under way, if above pos
	told      int64 // position as last told by a part, by Started or by Moved
}

// reach adds the lives that a reader may be in without having been told: those that share all that is below its position.
func (c *cursor) reach() []*life {
	if c.fresh {
		return c.partition.lives // where it begins is found out when it is told
	}
	reached := slices.Clone(c.lives)
	for i := 0; i < len(reached); i++ {
		next := reached[i].index + 1
		if next >= len(c.partition.lives) {
			continue
		}
		v := c.partition.lives[next]
		if !v.recreated && c.pos <= v.fork && !slices.Contains(reached, v) {
			reached = append(reached, v)
		}
	}
	return reached
}

// begin lets a partition that was added begin at its oldest record, as it was found: where there is nothing below.
func (c *cursor) begin(from int64, wants func(*plainRecord) bool) {
	var lives []*life
	for _, v := range c.partition.lives {
		if from <= *v.oldest || v.lost(c.pos, from, wants) == nil {
			lives = append(lives, v)
		}
	}
	if from > c.pos && len(lives) > 0 {
		c.pos, c.lives, c.fresh = from, lives, false
	}
}

// keep goes on with the lives in which a step is right; err is why it is wrong in the last.
func (c *cursor) keep(right func(*life) error) (err error) {
	var kept []*life
	for _, v := range c.reach() {
		if e := right(v); e != nil {
			err = e
			continue
		}
		kept = append(kept, v)
	}
	if len(kept) == 0 {
		return err
	}
	c.lives = kept
	return nil
}
