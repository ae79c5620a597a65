package watchdog

import "container/heap"

// queue is a heap of what is held, the soonest to need attention first. It
// keeps each Held's own place in it up to date.
type queue []*Held

func (q *queue) add(h *Held)    { heap.Push(q, h) }
func (q *queue) moved(h *Held)  { heap.Fix(q, h.place) }
func (q *queue) remove(h *Held) { heap.Remove(q, h.place) }

// first returns the soonest, or nil.
func (q queue) first() *Held {
	if len(q) == 0 {
		return nil
	}
	return q[0]
}

// The methods of heap.Interface.

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].due.Before(q[j].due) }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].place, q[j].place = i, j
}

func (q *queue) Push(x any) {
	h := x.(*Held)
	h.place = len(*q)
	*q = append(*q, h)
}

func (q *queue) Pop() any {
	old := *q
	last := len(old) - 1
	h := old[last]
	old[last] = nil
	*q = old[:last]
	return h
}
