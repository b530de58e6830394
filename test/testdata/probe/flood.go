package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// flood runs "connections|dns|udp|syn TO TIME", which does as much of it as it can, "latency URL TIME", which fetches a page
// over and over and says how long that took, "download URL", which says when a download has begun and how it ends, or "siege
// TO...", which connects to one after the other for ever and writes down which let it in.
func flood(args []string) error {
	switch args[0] {
	case "download":
		return download(args[1])
	case "siege":
		return siege(args[1:])
	}
	length, err := time.ParseDuration(args[2])
	if err != nil {
		return err
	}
	end := time.Now().Add(length)
	switch args[0] {
	case "connections":
		return connections(args[1], end)
	case "dns":
		return spray(func(i int, c net.Conn) error {
			_, err := c.Write(query(attempt{}, fmt.Sprintf("%d.flood.example.org", i)))
			return err
		}, args[1], end)
	case "udp":
		return sprayPorts(args[1], end)
	case "syn":
		return syns(args[1], end)
	default:
		return latency(args[1], end)
	}
}

// connections tries 10,000 connections, and keeps all that it gets until the end.
func connections(to string, end time.Time) error {
	var open, failed atomic.Int64
	var wg sync.WaitGroup
	d := net.Dialer{Deadline: end}
	var mu sync.Mutex
	var kept []net.Conn
	turns := make(chan struct{}, 500)
	for range 10_000 {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			c, err := d.Dial("tcp", to)
			if err != nil {
				failed.Add(1)
				return
			}
			open.Add(1)
			mu.Lock()
			kept = append(kept, c)
			mu.Unlock()
		})
	}
	wg.Wait()
	alive := 0
	for _, c := range kept {
		c.SetReadDeadline(time.Now().Add(time.Millisecond))
		if _, err := c.Read(make([]byte, 1)); os.IsTimeout(err) {
			alive++
		}
		c.Close()
	}
	fmt.Printf("open %d failed %d alive %d\n", open.Load(), failed.Load(), alive)
	return nil
}

func spray(write func(int, net.Conn) error, to string, end time.Time) error {
	c, err := net.Dial("udp", to)
	if err != nil {
		return err
	}
	defer c.Close()
	n := 0
	for ; time.Now().Before(end); n++ {
		_ = write(n, c) // an error of one before
	}
	fmt.Printf("sent %d\n", n)
	return nil
}

// sprayPorts sends a datagram to one port of a host after the other, each from a port of its own.
func sprayPorts(host string, end time.Time) error {
	n, failed := 0, 0
	for ; time.Now().Before(end); n++ {
		c, err := net.Dial("udp", net.JoinHostPort(host, strconv.Itoa(1024+n%60000)))
		if err != nil {
			failed++
			continue
		}
		_, _ = c.Write([]byte("spray"))
		c.Close()
	}
	fmt.Printf("sent %d failed %d\n", n, failed)
	return nil
}

// syns begins connections without waiting for any: 200 at a time.
func syns(to string, end time.Time) error {
	addr, err := net.ResolveTCPAddr("tcp4", to)
	if err != nil {
		return err
	}
	at := &unix.SockaddrInet4{Port: addr.Port, Addr: [4]byte(addr.IP.To4())}
	fds := make([]int, 200)
	for i := range fds {
		fds[i] = -1
	}
	n := 0
	for ; time.Now().Before(end); n++ {
		i := n % len(fds)
		if fds[i] >= 0 {
			unix.Close(fds[i])
		}
		if fds[i], err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK, 0); err != nil {
			return err
		}
		_ = unix.Connect(fds[i], at) // it is in progress, or there is no port left
	}
	fmt.Printf("sent %d\n", n)
	return nil
}

// latency writes how many fetches there were, how many failed, and the longest and the middle one in milliseconds.
func latency(url string, end time.Time) error {
	c := http.Client{Transport: trusting(), Timeout: 10 * time.Second}
	var took []int64
	failed := 0
	for time.Now().Before(end) {
		begin := time.Now()
		resp, err := c.Get(url)
		if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			failed++
		}
		took = append(took, time.Since(begin).Milliseconds())
		time.Sleep(calm)
	}
	slices.Sort(took)
	return json.NewEncoder(os.Stdout).Encode(map[string]int64{
		"fetches": int64(len(took)), "failed": int64(failed), "median": took[len(took)/2], "longest": took[len(took)-1],
	})
}

// calm is a pause after which the resolver's limit, on two queries for each connection, is not reached.
const calm = 60 * time.Millisecond

// download writes "begun" with the first byte, and how the download ended.
func download(url string) error {
	// Who only reads is not told that the wire process has died: nobody is left who knows of the connection, until a segment
	// comes for it. These ask every second.
	d := net.Dialer{KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 3}}
	t := trusting()
	t.DialContext = d.DialContext
	c := http.Client{Transport: t}
	resp, err := c.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.ReadFull(resp.Body, make([]byte, 1)); err != nil {
		return err
	}
	fmt.Println("begun")
	n, err := io.Copy(io.Discard, resp.Body)
	fmt.Printf("ended after %d bytes: %v\n", n, err)
	return nil
}

// siege writes to /siege.
func siege(targets []string) error {
	f, err := os.Create("/siege")
	if err != nil {
		return err
	}
	defer f.Close()
	for round := 0; ; round++ {
		time.Sleep(2 * calm)
		for _, to := range targets {
			c, err := net.DialTimeout("tcp", to, patience/10)
			if err != nil {
				continue
			}
			c.Close()
			if _, err := fmt.Fprintln(f, round, to); err != nil {
				return err
			}
		}
	}
}
