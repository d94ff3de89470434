package kafka

// command is something that others want of the follower, executed by its goroutine in order.
type command struct {
	follow   *followed
	unfollow *followed
	done     chan struct{} // closed when unfollow is done
	found    func()        // a finding of the checker or the watcher
}

// follow is hub.Source's Follow for a partition of this follower.
func (f *follower) follow(t appender, partition int32, from int64) (unfollow func()) {
	p := newFollowed(t, partition, from)
	f.send(command{follow: p})
	return func() {
		done := make(chan struct{})
		f.send(command{unfollow: p, done: done})
		select {
		case <-done:
		case <-f.stopped:
		}
	}
}

func (f *follower) send(c command) {
	f.mu.Lock()
	f.cmds = append(f.cmds, c)
	if f.bell != nil {
		f.bell.ring()
	}
	f.mu.Unlock()
}

// setBell hands the bell to those who send commands, or takes it from them.
func (f *follower) setBell(b *bell) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.bell = b
}

// execute takes the commands that wait, consecutive ones of a kind together: one assign for 400 partitions takes as long as one for one.
func (f *follower) execute() {
	f.mu.Lock()
	cmds := f.cmds
	f.cmds = nil
	f.mu.Unlock()
	for len(cmds) > 0 {
		n := 0
		switch {
		case cmds[0].follow != nil:
			var ps []*followed
			for n < len(cmds) && cmds[n].follow != nil {
				ps = append(ps, cmds[n].follow)
				n++
			}
			f.add(ps)
		case cmds[0].unfollow != nil:
			var ps []*followed
			for n < len(cmds) && cmds[n].unfollow != nil {
				ps = append(ps, cmds[n].unfollow)
				n++
			}
			f.remove(ps)
			for _, c := range cmds[:n] {
				close(c.done)
			}
		default:
			cmds[0].found()
			n = 1
		}
		cmds = cmds[n:]
	}
}
