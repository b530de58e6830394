package confine

import (
	"cmp"
	"errors"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Filter says which system calls are allowed. The first rule for a call decides.
type Filter struct {
	Rules  []Rule
	Others bool // whether calls without a rule are allowed; else they fail with EPERM
}

// A Rule allows calls if all tests of one of Uses hold. Else they end as Else says, a SECCOMP_RET; 0 is failing with EPERM.
type Rule struct {
	Calls []uint32
	Uses  [][]Test
	Else  uint32
}

// A Test is about the lower half of an argument. It holds if the bits of Mask (0 is all) are one of Is, or if one of AnyBit is
// set, or none of NoBit. Some values allow or deny the call whatever other tests say.
type Test struct {
	Arg, Mask       uint32
	Is, Allow, Deny []uint32
	AnyBit, NoBit   uint32
}

// Install filters the calls of all threads, and of processes that they start. The error is ENOSYS if there are no filters
// for this machine.
func (f Filter) Install() error {
	arch := map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}[runtime.GOARCH]
	if arch == 0 {
		return unix.ENOSYS
	}
	prog := f.program(arch)
	fprog := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&fprog)))
	switch {
	case errno != 0:
		return errno
	case thread != 0:
		return errors.New("a thread could not be filtered")
	}
	return nil
}

// Offsets in struct seccomp_data, on little-endian machines. Arguments are 64 bits wide.
const (
	dataNr   = 0
	dataArch = 4
	dataArgs = 16
)

const (
	load  = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	and   = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
	equal = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	bits  = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
	ret   = unix.BPF_RET | unix.BPF_K
	allow = unix.SECCOMP_RET_ALLOW
	deny  = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
)

func (f Filter) program(arch uint32) []unix.SockFilter {
	p := []unix.SockFilter{
		{Code: load, K: dataArch},
		{Code: equal, K: arch, Jt: 1},
		{Code: ret, K: unix.SECCOMP_RET_KILL_PROCESS},
		{Code: load, K: dataNr},
		// Numbers from here on are those of x32 on amd64, and of nothing elsewhere.
		{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: 0x40000000, Jf: 1},
		{Code: ret, K: unix.SECCOMP_RET_KILL_PROCESS},
	}
	for _, r := range f.Rules {
		for _, call := range r.Calls {
			p = append(p, f.block(call, r)...)
		}
	}
	if f.Others {
		return append(p, unix.SockFilter{Code: ret, K: allow})
	}
	return append(p, unix.SockFilter{Code: ret, K: deny})
}

// block returns the instructions of a rule for one call. They are made from the last to the first, because jumps go forward.
func (f Filter) block(call uint32, r Rule) []unix.SockFilter {
	var b []unix.SockFilter
	// add returns the position of an instruction in b. A jump goes to the position yes or no; -1 is behind the block.
	add := func(code uint16, k uint32) int {
		b = append(b, unix.SockFilter{Code: code, K: k})
		return len(b) - 1
	}
	jump := func(code uint16, k uint32, yes, no int) int {
		at := add(code, k)
		b[at].Jt, b[at].Jf = uint8(at-1-yes), uint8(at-1-no)
		return at
	}
	var pass int
	if f.Others && len(r.Uses) > 0 {
		pass = add(ret, allow)
	}
	refuse := add(ret, cmp.Or(r.Else, deny))
	fail := refuse
	for _, use := range slices.Backward(r.Uses) {
		if !f.Others {
			pass = add(ret, allow)
		}
		next := pass
		for _, t := range slices.Backward(use) {
			no := fail
			switch {
			case t.AnyBit != 0:
				jump(bits, t.AnyBit, next, fail)
			case t.NoBit != 0:
				jump(bits, t.NoBit, fail, next)
			}
			for _, v := range slices.Backward(t.Is) {
				no = jump(equal, v, next, no)
			}
			for _, v := range slices.Backward(t.Deny) {
				no = jump(equal, v, refuse, no)
			}
			for _, v := range slices.Backward(t.Allow) {
				no = jump(equal, v, pass, no)
			}
			if t.Mask != 0 {
				add(and, t.Mask)
			}
			next = add(load, dataArgs+8*t.Arg)
		}
		fail = next
	}
	jump(equal, call, len(b)-1, -1)
	slices.Reverse(b)
	return b
}
