package group

// Delayed is how many queues and records wait for their time, those that nobody wants any more among them.
func (g *Group) Delayed() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.later)
}
