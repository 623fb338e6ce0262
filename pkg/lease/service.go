package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"
	"time"
)

// Options are what a Service reports to.
type Options struct {
	Log      *slog.Logger // slog.Default() when nil
	Observer Observer
	wrap     func(engine) engine // what tests put between the service and its store
}

// Service is all of leases: checks, actions, renewals in flight, cooldowns. It is safe for concurrent use.
type Service struct {
	log      *slog.Logger
	observer Observer
	current  atomic.Pointer[view]
	wrap     func(engine) engine
	keepers  keepers

	cooldowns cooldowns
	acquires  rates
	abandons  chan abandoned

	configure sync.Mutex
	closed    bool
	retired   []*store // replaced, perhaps still used by calls that began before
	cancel    context.CancelFunc
	work      sync.WaitGroup
}

// New makes a service. It does not wait for the store: without one it starts degraded, answers by onStoreError and works
// as soon as the store does. It fails on invalid settings and on files that cannot be read.
func New(s Settings, principals []Principal, o Options) (*Service, error) {
	svc := &Service{log: o.Log, observer: o.Observer, wrap: o.wrap, abandons: make(chan abandoned, maxAbandoned)}
	if svc.log == nil {
		svc.log = slog.Default()
	}
	if err := svc.Configure(s, principals); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	svc.cancel = cancel
	svc.work.Go(func() { svc.watch(ctx) })
	svc.work.Go(func() { svc.abandonLoop(ctx) })
	return svc, nil
}

// storeLinger is how long a store that was replaced stays open for calls that still use it.
const storeLinger = 5 * time.Second

// Configure validates and puts into force new settings. Leases, cooldowns and history survive unless the store
// changes; settings that the present store does not use do not change it.
// Leases of principals that are gone or not managed any more are invalidated in the background.
func (s *Service) Configure(settings Settings, list []Principal) error {
	if err := errors.Join(settings.Validate(), ValidatePrincipals(list, settings.Pools)); err != nil {
		return err
	}
	s.configure.Lock()
	defer s.configure.Unlock()
	if s.closed {
		return errors.New("lease service is closed")
	}
	old := s.current.Load()
	var st *store
	if old != nil && reflect.DeepEqual(old.settings.Store.used(), settings.Store.used()) {
		st = old.store
	} else {
		var err error
		if st, err = openStore(settings.Store, observedLog{s.log, s.observer}); err != nil {
			return err
		}
		if s.wrap != nil {
			st.engine = s.wrap(st.engine)
		}
	}
	v, err := newView(settings, list, st)
	if err != nil {
		if old == nil || old.store != st {
			_ = st.close() // the error that counts is err
		}
		return err
	}
	s.current.Store(v)
	if st.kind == "embedded" && len(v.pools) > 0 && (old == nil || old.store != st || len(old.pools) == 0) {
		s.warnEmbedded(settings.Store.EmbeddedPath)
	}
	if old == nil {
		return nil
	}
	if old.store != st {
		s.retired = append(s.retired, old.store)
		time.AfterFunc(storeLinger, func() { _ = old.store.close() }) // nobody uses it any more
	}
	s.revoke(old, v)
	return nil
}

func (s *Service) warnEmbedded(path string) {
	if path == "" {
		s.log.Warn("leases live in this process: one replica only, nothing survives a restart")
	} else {
		s.log.Warn("leases live in this process: one replica only", "file", path)
	}
}

// Close ends the background work and the store's connections. Leases stay in the store until they expire.
func (s *Service) Close() error {
	s.configure.Lock()
	defer s.configure.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	s.keepers.closeAll()
	s.cancel()
	s.work.Wait()
	errs := []error{s.view().store.close()}
	for _, st := range s.retired {
		errs = append(errs, st.close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("close the lease store: %w", err)
	}
	return nil
}

func (s *Service) view() *view { return s.current.Load() }

// CutOnLost says that an exchange whose lease was lost is to be cut.
func (s *Service) CutOnLost() bool { return s.view().settings.OnLost == "cut" }
