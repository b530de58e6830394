package gvisor

import (
	"bytes"
	"encoding/binary"
)

// initProgram returns the program of process 1 of every sandbox: a static ELF file of about 300 bytes. It runs in every
// sandbox, so it avoids the memory use and the start-up time of a language runtime (of Go or a C library).
//
// With arguments, it starts them as its child (process 2) and reaps orphans that are re-parented to it, but not that child:
// the child's zombie keeps the exit status until the host has read it, even across a restart of the daemon. When the child
// has exited, or without arguments, it sets SIGCHLD to ignored, so that the kernel reaps, and sleeps. As pseudo-code:
//
//	if argc > 1 {
//		if argv[1][0] == '-' { exit(0) } // a probe that checks whether the sandbox can run a process
//		if pid := fork(); pid == 0 { execve(argv[1], argv+1, envp); exit(127) }
//		for waitid(P_ALL, 0, &info, WEXITED|WNOWAIT) == 0 && info.pid != pid { wait4(info.pid, nil, 0, nil) }
//	}
//	rt_sigaction(SIGCHLD, SIG_IGN)
//	for { pause() }
func initProgram() []byte {
	// base is the address at which the file is loaded; headers is the size in bytes of the ELF header and program header.
	const base, headers = 0x400000, 64 + 56
	code := initCode()
	var b bytes.Buffer
	put := func(v ...any) {
		for _, x := range v {
			binary.Write(&b, binary.LittleEndian, x) // a bytes.Buffer does not fail
		}
	}
	// ELF header (ELF-64 Object File Format 1.5, figure 2).
	b.WriteString("\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00")
	put(uint16(2), uint16(62), uint32(1), uint64(base+headers), uint64(64), uint64(0), uint32(0),
		uint16(64), uint16(56), uint16(1), uint16(64), uint16(0), uint16(0))
	// One program header: the whole file, readable and executable.
	size := uint64(headers + len(code))
	put(uint32(1), uint32(5), uint64(0), uint64(base), uint64(base), size, size, uint64(0x1000))
	b.Write(code)
	return b.Bytes()
}

// assembler assembles x86-64 machine code. It supports only short jumps, to labels.
type assembler struct {
	code   []byte         // the machine code so far
	labels map[string]int // label → offset in code
	jumps  map[int]string // offset of the displacement → label
}

// emit appends bytes to the code.
func (a *assembler) emit(b ...byte) { a.code = append(a.code, b...) }

// label defines a label at the current end of the code.
func (a *assembler) label(name string) { a.labels[name] = len(a.code) }

// jump emits a short jump with the opcode op to the label l.
func (a *assembler) jump(op byte, l string) { a.emit(op, 0); a.jumps[len(a.code)-1] = l }

// syscall emits instructions that load the system call's number into eax and make the call.
func (a *assembler) syscall(number uint32) {
	a.emit(0xb8)
	a.code = binary.LittleEndian.AppendUint32(a.code, number)
	a.emit(0x0f, 0x05)
}

// link fills in the displacements of the jumps and returns the code.
func (a *assembler) link() []byte {
	for at, l := range a.jumps {
		a.code[at] = byte(a.labels[l] - at - 1)
	}
	return a.code
}

// initCode returns the machine code of process 1. The comment of initProgram has the same program as pseudo-code.
func initCode() []byte {
	const (
		sysRtSigaction, sysPause, sysFork, sysExecve, sysExit, sysWait4, sysWaitid = 13, 34, 57, 59, 60, 61, 247

		jmp, je, jl, jne = 0xeb, 0x74, 0x7c, 0x75
	)
	a := &assembler{labels: map[string]int{}, jumps: map[int]string{}}
	a.emit(0x48, 0x8b, 0x1c, 0x24) // mov rbx, [rsp]        argc
	a.emit(0x48, 0x83, 0xfb, 0x02) // cmp rbx, 2
	a.jump(jl, "idle")
	a.emit(0x48, 0x8b, 0x7c, 0x24, 0x10) // mov rdi, [rsp+16]       argv[1]
	a.emit(0x80, 0x3f, '-')              // cmp byte [rdi], '-'
	a.jump(jne, "start")
	a.emit(0x31, 0xff) // xor edi, edi
	a.syscall(sysExit)
	a.label("start")
	a.syscall(sysFork)
	a.emit(0x85, 0xc0) // test eax, eax
	a.jump(jne, "parent")

	a.emit(0x48, 0x8b, 0x7c, 0x24, 0x10) // mov rdi, [rsp+16]       argv[1]
	a.emit(0x48, 0x8d, 0x74, 0x24, 0x10) // lea rsi, [rsp+16]       argv+1
	a.emit(0x48, 0x8d, 0x54, 0xdc, 0x10) // lea rdx, [rsp+rbx*8+16] envp
	a.syscall(sysExecve)
	a.emit(0xbf, 0x7f, 0x00, 0x00, 0x00) // mov edi, 127
	a.syscall(sysExit)
	a.label("parent")
	a.emit(0x89, 0xc5) // mov ebp, eax
	a.label("reap")
	a.emit(0x31, 0xff)             // xor edi, edi            P_ALL
	a.emit(0x31, 0xf6)             // xor esi, esi
	a.emit(0x48, 0x8d, 0x94, 0x24) // lea rdx, [rsp-256]      siginfo
	a.emit(0x00, 0xff, 0xff, 0xff)
	a.emit(0x41, 0xba, 0x04, 0x00, 0x00, 0x01) // mov r10d, WEXITED|WNOWAIT
	a.emit(0x45, 0x31, 0xc0)                   // xor r8d, r8d
	a.syscall(sysWaitid)
	a.emit(0x85, 0xc0)       // test eax, eax
	a.jump(jne, "idle")      // waitid failed: there is no child
	a.emit(0x8b, 0xbc, 0x24) // mov edi, [rsp-240]      siginfo.si_pid
	a.emit(0x10, 0xff, 0xff, 0xff)
	a.emit(0x39, 0xef)       // cmp edi, ebp
	a.jump(je, "idle")       // the command has exited
	a.emit(0x31, 0xf6)       // xor esi, esi
	a.emit(0x31, 0xd2)       // xor edx, edx
	a.emit(0x45, 0x31, 0xd2) // xor r10d, r10d
	a.syscall(sysWait4)
	a.jump(jmp, "reap")

	a.label("idle")
	a.emit(0x48, 0x8d, 0xb4, 0x24) // lea rsi, [rsp-256]      struct sigaction
	a.emit(0x00, 0xff, 0xff, 0xff)
	a.emit(0x48, 0xc7, 0x06, 0x01, 0, 0, 0)    // mov qword [rsi], SIG_IGN
	a.emit(0x48, 0xc7, 0x46, 0x08, 0, 0, 0, 0) // mov qword [rsi+8], 0    flags
	a.emit(0x48, 0xc7, 0x46, 0x10, 0, 0, 0, 0) // mov qword [rsi+16], 0   restorer
	a.emit(0x48, 0xc7, 0x46, 0x18, 0, 0, 0, 0) // mov qword [rsi+24], 0   mask
	a.emit(0xbf, 0x11, 0x00, 0x00, 0x00)       // mov edi, SIGCHLD
	a.emit(0x31, 0xd2)                         // xor edx, edx
	a.emit(0x41, 0xba, 0x08, 0x00, 0x00, 0x00) // mov r10d, 8             size of the mask
	a.syscall(sysRtSigaction)
	a.label("sleep")
	a.syscall(sysPause)
	a.jump(jmp, "sleep")
	return a.link()
}
