package image

// hold prevents prune and remove from removing any layer that a method returns between this call and the call of release.
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
			clear(s.handedOut)
		}
	}
}

// handOut records that the layer is returned to a caller, so that it is not removed before all holds are released. The caller
// must hold s.mu.
func (s *layerStore) handOut(digest string) {
	if s.holds > 0 {
		s.handedOut[digest] = true
	}
}

// handOutIfPresent reports whether the layer is still present. If so, it records that the layer is returned to a caller.
func (s *layerStore) handOutIfPresent(digest string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok, err := s.find(digest)
	if ok {
		s.handOut(digest)
	}
	return ok && err == nil
}

// findOrBegin returns the layer if it is present and account owns it. If another caller is fetching the layer, it returns a
// channel that is closed when that caller calls finish. Otherwise it returns a zero Layer and a nil channel: the caller must then
// fetch the layer and call finish afterwards, also after an error.
func (s *layerStore) findOrBegin(digest, account string) (Layer, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if flight := s.inProgress[digest]; flight != nil {
		return Layer{}, flight, nil
	}
	l, ok, err := s.find(digest)
	if err != nil {
		return Layer{}, nil, err
	}
	s.handOut(digest) // called for an absent layer, too, because the caller fetches it and it must not be removed then
	if ok && s.owns(account, digest) {
		return l, nil, nil
	}
	s.inProgress[digest] = make(chan struct{})
	return Layer{}, nil, nil
}

// finish ends a fetch that began with findOrBegin, and wakes the callers that wait for it.
func (s *layerStore) finish(digest string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.inProgress[digest])
	delete(s.inProgress, digest)
}
