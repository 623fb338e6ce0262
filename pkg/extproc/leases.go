package extproc

import (
	"github.com/headgate/headgate/pkg/extproc/wire"
)

type leaseHold struct{ held bool }

func (x *exchange) leaseGoverns() bool                      { return false }
func (x *exchange) leaseSyntaxGate() *Verdict               { return nil }
func (x *exchange) leaseGate() exit                         { return exit{} }
func (l *leaseHold) mutate(*wire.Mutation)                  {}
func (l *leaseHold) answered(*exchange, *wire.Message, int) {}
func (l *leaseHold) release()                               {}
