package budget

import "iter"

// list is a doubly linked list whose nodes live inside their owners: joining and leaving allocate nothing and take the
// same time at any length. The zero value is empty.
type list[T any] struct {
	first, last *node[T]
}

// node is an owner's place in one list. of is the owner.
type node[T any] struct {
	prev, next *node[T]
	of         *T
}

func (l *list[T]) pushBack(n *node[T]) { l.insertBefore(nil, n) }

// insertBefore puts n in front of at, or at the end when at is nil.
func (l *list[T]) insertBefore(at, n *node[T]) {
	n.next, n.prev = at, l.last
	if at != nil {
		n.prev = at.prev
		at.prev = n
	} else {
		l.last = n
	}
	if n.prev != nil {
		n.prev.next = n
	} else {
		l.first = n
	}
}

func (l *list[T]) remove(n *node[T]) {
	if n.prev != nil {
		n.prev.next = n.next
	} else {
		l.first = n.next
	}
	if n.next != nil {
		n.next.prev = n.prev
	} else {
		l.last = n.prev
	}
	n.prev, n.next = nil, nil
}

// all yields the owners in order. The list must not change meanwhile.
func (l *list[T]) all() iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for n := l.first; n != nil; n = n.next {
			if !yield(n.of) {
				return
			}
		}
	}
}
