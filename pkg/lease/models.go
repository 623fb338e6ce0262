package lease

// ListsModels reports whether some connection of the pool serves listed models only, so that it depends on the model which
// connections may serve a request.
func (s *Service) ListsModels(pool string) bool {
	p := s.view().pools[pool]
	return p != nil && p.listsModels
}

// Serves reports whether a connection of the pool serves the model.
func (s *Service) Serves(pool, connection, model string) bool {
	p := s.view().pools[pool]
	if p == nil {
		return false
	}
	c, known := p.byID[connection]
	return known && c.serves(model)
}
