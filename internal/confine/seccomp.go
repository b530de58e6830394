package confine

import (
	"cmp"
	"errors"
	"runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A Filter defines the allowed system calls. If Rules has several rules for a call, the first one is used.
type Filter struct {
	Rules       []Rule // the rules for system calls
	AllowOthers bool   // allows calls for which Rules has no rule; if it is false, they fail with EPERM
}

// A Rule allows its calls if all tests of one element of AnyOf pass. Otherwise the result of the call is Else, a SECCOMP_RET
// value; 0 means that the call fails with EPERM.
type Rule struct {
	Calls []uint32 // numbers of the system calls
	AnyOf [][]Test // the calls are allowed if all tests of one element pass
	Else  uint32   // result of calls that are not allowed, a SECCOMP_RET value; 0 means EPERM
}

// A Test examines the lower 32 bits of an argument of a system call. It passes if the bits in Mask (0 means all) equal an
// element of Is, if a bit of AnyBit is set, or if no bit of NoBit is set. Values in Allow and Deny decide about the call
// regardless of the other tests.
type Test struct {
	Arg, Mask       uint32   // the number of the argument, from 0, and the bits that Is, Allow and Deny are compared with
	Is, Allow, Deny []uint32 // values with which the test passes (Is), the call is allowed (Allow), and the call is denied (Deny)
	AnyBit, NoBit   uint32   // bits of the argument: the test passes if one of AnyBit is set, or none of NoBit; 0 means no test
}

// Install filters the system calls of all threads and child processes. It returns ENOSYS if filters are not supported
// on this architecture.
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
		return errors.New("cannot install the seccomp filter on all threads")
	}
	return nil
}

// Offsets, in bytes, of the fields of struct seccomp_data on little-endian machines. Each argument has 64 bits.
const (
	dataNr   = 0
	dataArch = 4
	dataArgs = 16
)

// Operation codes of the BPF instructions, and results of the filter, that the program of a [Filter] uses.
const (
	load        = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
	and         = unix.BPF_ALU | unix.BPF_AND | unix.BPF_K
	jumpIfEqual = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	jumpIfBits  = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
	ret         = unix.BPF_RET | unix.BPF_K
	allow       = unix.SECCOMP_RET_ALLOW
	deny        = unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)
)

// program returns the BPF program of f for the architecture arch, an AUDIT_ARCH value.
func (f Filter) program(arch uint32) []unix.SockFilter {
	p := []unix.SockFilter{
		{Code: load, K: dataArch},
		{Code: jumpIfEqual, K: arch, Jt: 1},
		{Code: ret, K: unix.SECCOMP_RET_KILL_PROCESS},
		{Code: load, K: dataNr},
		// System call numbers from 0x40000000 are x32 system calls on amd64, and unused on other architectures.
		{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: 0x40000000, Jf: 1},
		{Code: ret, K: unix.SECCOMP_RET_KILL_PROCESS},
	}
	for _, r := range f.Rules {
		for _, call := range r.Calls {
			p = append(p, f.ruleInstructions(call, r)...)
		}
	}
	if f.AllowOthers {
		return append(p, unix.SockFilter{Code: ret, K: allow})
	}
	return append(p, unix.SockFilter{Code: ret, K: deny})
}

// ruleInstructions returns the instructions of a rule for one call. It builds them from the last to the first, because a jump
// leads to a later instruction, whose position must be known.
func (f Filter) ruleInstructions(call uint32, r Rule) []unix.SockFilter {
	var b []unix.SockFilter
	// add appends an instruction to b and returns its position. jump appends a conditional jump to the positions yes and no in
	// b; the position -1 stands for the instruction after the rule.
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
	if f.AllowOthers && len(r.AnyOf) > 0 {
		pass = add(ret, allow)
	}
	refuse := add(ret, cmp.Or(r.Else, deny))
	fail := refuse
	for _, use := range slices.Backward(r.AnyOf) {
		if !f.AllowOthers {
			pass = add(ret, allow)
		}
		next := pass
		for _, t := range slices.Backward(use) {
			no := fail
			switch {
			case t.AnyBit != 0:
				jump(jumpIfBits, t.AnyBit, next, fail)
			case t.NoBit != 0:
				jump(jumpIfBits, t.NoBit, fail, next)
			}
			for _, v := range slices.Backward(t.Is) {
				no = jump(jumpIfEqual, v, next, no)
			}
			for _, v := range slices.Backward(t.Deny) {
				no = jump(jumpIfEqual, v, refuse, no)
			}
			for _, v := range slices.Backward(t.Allow) {
				no = jump(jumpIfEqual, v, pass, no)
			}
			if t.Mask != 0 {
				add(and, t.Mask)
			}
			next = add(load, dataArgs+8*t.Arg)
		}
		fail = next
	}
	jump(jumpIfEqual, call, len(b)-1, -1)
	slices.Reverse(b)
	return b
}
