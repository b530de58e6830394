package image

// hold keeps prune from removing any layer that is handed out until release is called.
func (s *layerStore) hold() (release func()) {
	s.mu.Lock()
	s.holds++
	s.mu.Unlock()
	released := false
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if released {
			return
		}
		released = true
		if s.holds--; s.holds == 0 {
			clear(s.touched)
		}
	}
}

// handOut remembers that somebody who may hold gets the layer. s.mu must be held.
func (s *layerStore) handOut(digest string) {
	if s.holds > 0 {
		s.touched[digest] = true
	}
}

// retouch hands a layer out again if it is still there.
func (s *layerStore) retouch(digest string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok, err := s.find(digest)
	if ok {
		s.handOut(digest)
	}
	return ok && err == nil
}

// claim returns the layer if account may have it now; else a channel to wait for, or nothing at all: then the caller has
// begun a flight, which it ends with land.
func (s *layerStore) claim(digest, account string) (Layer, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if flight := s.flights[digest]; flight != nil {
		return Layer{}, flight, nil
	}
	l, ok, err := s.find(digest)
	if err != nil {
		return Layer{}, nil, err
	}
	s.handOut(digest) // already now: the caller will get it, however that comes to pass
	if ok && s.owns(account, digest) {
		return l, nil, nil
	}
	s.flights[digest] = make(chan struct{})
	return Layer{}, nil, nil
}

func (s *layerStore) land(digest string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.flights[digest])
	delete(s.flights, digest)
}
