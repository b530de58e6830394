package test_test

import (
	"fmt"
	"net"
	"strings"
)

// flowTo returns the wire's description of a refused flow.
func flowTo(protocol, to, reason string) string { return "flow " + to + " " + protocol + ": " + reason }

func tcpTo(to, reason string) attempt {
	return attempt{Do: "tcp", To: to, why: flowTo("tcp", to, reason)}
}

func udpTo(to, reason string) attempt {
	return attempt{Do: "udp", To: to, why: flowTo("udp", to, reason)}
}

// silent is the type of an attempt that gets no response, not even a refusal.
const silent = 1

const (
	noRule  = "no rule allows it"
	noPort  = "the gateway has no service on this port"
	special = "the address is "
)

// addressAttempts vary the destination: addresses in all notations, ports, protocols.
func addressAttempts() []attempt {
	list := []attempt{
		tcpTo("1.1.1.1:443", noRule),
		tcpTo("[2606:4700:4700::1111]:443", noRule),
		tcpTo(badAddr4+":443", noRule), tcpTo(badAddr4+":80", noRule),
		tcpTo("["+badAddr6+"]:443", noRule),
		tcpTo(routerAddr4+":80", noRule),
		// Other notations of the same address.
		{Do: "tcp", To: "[::ffff:" + badAddr4 + "]:8443", why: flowTo("tcp", badAddr4+":8443", noRule)},
		tcpTo("[2002:c633:6414::1]:443", special+"a 6to4 tunnel"),
		tcpTo("[2002:a9fe:a9fe::1]:80", special+"a metadata service"),
		tcpTo("[64:ff9b::c633:6414]:443", special+"a translation of IPv4"),
		tcpTo("[64:ff9b::a9fe:a9fe]:80", special+"a metadata service"),
		tcpTo("[64:ff9b:1::a63:1]:7777", special+"private"),
		tcpTo("[2001:0:c633:6414::1]:443", special), tcpTo("[2001:0:a63:1:0:ffff:3a9c:9beb]:443", special+"private"),
		tcpTo("[::c633:6414]:443", special+"IPv4-compatible"),
		tcpTo("[::ffff:0:a63:1]:7777", special+"private"),
		tcpTo("[2001:db8:10::5efe:c633:6414]:443", noRule),
		// Metadata services.
		tcpTo("169.254.169.254:80", special+"a metadata service"), udpTo("169.254.169.254:53", special+"a metadata service"),
		tcpTo("169.254.170.2:80", special+"a metadata service"), tcpTo("169.254.170.23:80", special+"a metadata service"),
		tcpTo("100.100.100.200:80", special+"a metadata service"), tcpTo("168.63.129.16:80", special+"a metadata service"),
		tcpTo("192.0.0.192:80", special+"a metadata service"),
		tcpTo("[fd00:ec2::254]:80", special+"a metadata service"), tcpTo("[fd20:ce::254]:80", special+"a metadata service"),
		// Other sandboxes, which all have the same address, and possible neighbours on the wire.
		tcpTo("10.87.0.6:8080", special+"private"), tcpTo("10.87.1.2:8080", special+"private"),
		udpTo("10.87.0.6:8080", special+"private"), tcpTo("[fdca:1550:a87::6]:8080", special+"private"),
		{Do: "tcp", To: "10.87.0.2:8080"}, {Do: "tcp", To: "10.87.0.3:8080", Type: silent}, {Do: "tcp", To: "[fe80::1%eth0]:8080", Type: silent},
		{Do: "udp", To: "10.87.0.3:8080"}, {Do: "udp", To: "255.255.255.255:67"},
		// Other ports and protocols of the allowed destinations.
		tcpTo(goodAddr4+":22", noRule), tcpTo("["+goodAddr6+"]:22", noRule), tcpTo(goodAddr4+":853", noRule),
		udpTo(goodAddr4+":443", noRule), udpTo("["+goodAddr6+"]:443", noRule), udpTo(goodAddr4+":53", noRule),
		// Tunnels.
		udpTo(badAddr4+":443", noRule), udpTo(badAddr4+":500", noRule), udpTo(badAddr4+":4500", noRule),
		udpTo(badAddr4+":51820", noRule), udpTo("["+badAddr6+"]:1194", noRule), tcpTo(badAddr4+":1723", noRule),
		// The gateway has only two open ports.
		{Do: "scan", To: "10.87.0.1", Count: 100, Name: "53,80", why: noPort},
		{Do: "scan", To: goodAddr4, Count: 60, Name: "80,443", why: noRule},
		tcpTo("10.87.0.1:7070", noPort), tcpTo("[fdca:1550:a87::1]:443", noPort),
		udpTo("10.87.0.1:123", noPort), udpTo("[fdca:1550:a87::1]:5353", noPort),
	}
	return numbered("address", list)
}

// hostAttempts connect to the host: each of its addresses, the daemon's listeners, and its neighbours.
func hostAttempts(w *world) []attempt {
	list := []attempt{
		{Do: "unix", To: w.socket()}, {Do: "unix", To: "/proc/1/root" + w.socket()}, {Do: "unix", To: "@" + w.socket()},
		tcpTo("192.168.77.9:22", special+"private"), tcpTo("10.99.0.9:22", special+"private"),
		udpTo("192.168.77.255:7777", special+"private"), udpTo(hostAddr4[:len(hostAddr4)-1]+"255:7777", noRule),
	}
	for _, addr := range hostAddrs() {
		reason, to := special, net.JoinHostPort(addr, "7777")
		if addr == hostAddr4 || addr == hostAddr6 {
			reason = noRule
		}
		if addr == "127.0.0.1" || addr == "::1" { // The sandbox's own loopback address.
			list = append(list, attempt{Do: "tcp", To: to}, attempt{Do: "udp", To: to}, attempt{Do: "tcp", To: net.JoinHostPort(addr, "7070")})
			continue
		}
		list = append(list, tcpTo(to, reason), udpTo(to, reason), tcpTo(net.JoinHostPort(addr, "7070"), reason))
	}
	return numbered("host", list)
}

// Types of DNS records.
const (
	typeA, typeNS, typeCNAME, typeNULL, typePTR, typeMX, typeTXT = 1, 2, 5, 10, 12, 15, 16
	typeAAAA                                                     = 28
	typeSRV, typeNAPTR, typeOPENPGP, typeSVCB, typeHTTPS         = 33, 35, 61, 64, 65
	typeAXFR, typeANY, typePrivate                               = 252, 255, 65280
)

// nameAttempts query the wire's resolver for names that it must not forward.
func nameAttempts() []attempt {
	var list []attempt
	for _, name := range []string{
		badName, sharedName, "example.net", "x." + goodName, goodName + ".evil.org", "x" + goodName, "good-example.net", "dns.google",
		"cloudflare-dns.com", "one.one.one.one", "metadata.google.internal", "host.docker.internal", "instance-data.ec2.internal",
		strings.Repeat(strings.Repeat("a", 63)+".", 3) + "tunnel.example.org",
	} {
		list = append(list, attempt{Do: "dns", Name: name, why: "name " + name + ": " + noRule})
	}
	for _, t := range []uint16{typeTXT, typeMX, typeANY, typeNULL, typeSRV, typeNS, typeCNAME, typePTR, typeNAPTR, typeOPENPGP, typePrivate} {
		list = append(list, attempt{Do: "dns", Name: goodName, Type: t, why: "name " + goodName + ": only addresses are looked up"})
	}
	list = append(list,
		// Every browser sends these queries; they have no answer and are not recorded.
		attempt{Do: "dns", Name: goodName, Type: typeHTTPS}, attempt{Do: "dns", Name: goodName, Type: typeSVCB},
		attempt{Do: "dns", Name: goodName, Type: typeAXFR, TCP: true},
		// Queries that no policy answers.
		attempt{Do: "dns", Name: "version.bind", Type: typeTXT, Class: 3}, attempt{Do: "dns", Name: goodName, Opcode: 4},
		attempt{Do: "dns", Name: goodName, Opcode: 5}, attempt{Do: "dns", Name: "."},
		attempt{Do: "dns", Name: "\x00\x01\x02" + goodName, why: "not the name of a host"},
		attempt{Do: "dns", Name: `evil\.` + goodName, why: "not the name of a host"},
		attempt{Do: "dns", Name: goodName + "\x00.evil.org", why: "not the name of a host"},
		attempt{Do: "dns", Name: "good.exämple.net", why: "not the name of a host"},
		// Reverse lookups of addresses are refused, too.
		attempt{Do: "dns", Name: "10.100.51.198.in-addr.arpa", Type: typePTR, why: "there are no reverse lookups"},
		attempt{Do: "dns", Name: "1.0.99.10.in-addr.arpa", Type: typePTR, why: "name 1.0.99.10.in-addr.arpa: there are no reverse lookups"},
		attempt{Do: "dns", Name: "0.1.0.0.2.ip6.arpa", Type: typePTR, why: "name 0.1.0.0.2.ip6.arpa: there are no reverse lookups"},
		attempt{Do: "dns", Name: "resolver.arpa", Type: typeSVCB, why: "there are no reverse lookups"},
		attempt{Do: "dns", Name: "use-application-dns.net", why: "there is no way around this resolver"},
		attempt{Do: "dns", Name: "router", why: "names of one label lead nowhere here"},
		attempt{Do: "dns", Name: "printer.local", why: ".local is not in the public DNS"},
		attempt{Do: "dns", Name: "llm.caisson.internal", why: "llm.caisson.internal is not granted to this sandbox"},
		attempt{Do: "dns", Name: "other.caisson.internal", why: "other.caisson.internal is not granted to this sandbox"},
		attempt{Do: "dns", Name: "2130706433", why: "lead nowhere here"}, attempt{Do: "dns", Name: "0x7f.1", why: "an address is not a name"},
		attempt{Do: "get", To: "https://" + badName + "/", why: "name " + badName + ": " + noRule},
		attempt{Do: "get", To: "https://dns.google/resolve?name=example.com", why: "name dns.google: " + noRule},
		attempt{Do: "dns", Name: badName, TCP: true, why: "name " + badName + ": " + noRule},
		attempt{Do: "dns", Name: "tcp.tunnel.example.org", TCP: true, Count: 50, why: "tcp.tunnel.example.org: " + noRule},
		// Tunnels at full speed, until even the refusals exceed the rate limit, which recovers later. Which of the two
		// reasons is recorded last depends on the speed of the machine.
		attempt{Do: "dns", Name: "udp.tunnel.example.org", Count: 900, why: "name: more than 200 queries a second", or: "udp.tunnel.example.org: " + noRule},
		attempt{Do: "wait", Name: goodName, open: true},
	)
	return numbered("name", list)
}

// resolverAttempts query other resolvers.
func resolverAttempts() []attempt {
	var list []attempt
	for _, server := range []string{"8.8.8.8", "1.1.1.1", nameserverAddr, "[2001:4860:4860::8888]", goodAddr4} {
		to := server + ":53"
		list = append(list,
			attempt{Do: "dns", To: to, Name: goodName, why: flowTo("udp", to, noRule)},
			attempt{Do: "dns", To: to, Name: badName, TCP: true, why: flowTo("tcp", to, noRule)},
			tcpTo(server+":853", noRule), udpTo(server+":853", noRule))
	}
	list = append(list,
		attempt{Do: "tls", To: "1.1.1.1:443", Name: "cloudflare-dns.com", why: flowTo("tcp", "1.1.1.1:443", noRule)},
		attempt{Do: "tls", To: "8.8.8.8:443", Name: "dns.google", why: flowTo("tcp", "8.8.8.8:443", noRule)},
		attempt{Do: "tls", To: "8.8.4.4:443", Name: goodName, why: flowTo("tcp", "8.8.4.4:443", noRule)},
		attempt{Do: "get", To: "https://1.0.0.1/dns-query?name=example.com", why: flowTo("tcp", "1.0.0.1:443", noRule)},
		attempt{Do: "dns", To: "224.0.0.251:5353", Name: "printer.local"}, attempt{Do: "dns", To: "224.0.0.252:5355", Name: "router"},
	)
	return numbered("resolver", list)
}

// speechAttempts connect to allowed addresses and send content that the policy does not allow.
func speechAttempts() []attempt {
	secure, plain := goodAddr4+":443", goodAddr4+":80"
	request := func(name, what string) string { return "request " + strings.TrimSpace(name+" "+what) + " tcp: " }
	notAnswered := " is the name in the connection, but the resolver has not answered that name with this address"
	tls := func(name, why string) attempt {
		return attempt{Do: "tls", To: secure, Name: name, why: request(name, secure) + why}
	}
	// Name is part of the response of a server that received the request: bad's page.
	http := func(data, why string) attempt {
		return attempt{Do: "say", To: plain, Name: "this is " + badName, Data: data, why: why}
	}
	misled := request(badName, plain) + badName + notAnswered
	list := []attempt{
		tls(badName, badName+notAnswered), tls(sharedName, sharedName+notAnswered), tls("", "a rule allows the name, so TLS must have it"),
		tls("x."+goodName, "x."+goodName+notAnswered), tls("dns.google", "dns.google"+notAnswered),
		{Do: "tls", To: secure, Name: badName, Split: true, why: badName + notAnswered},
		{Do: "tls", To: "[" + goodAddr6 + "]:443", Name: sharedName, why: sharedName + notAnswered},
		{Do: "tls", To: plain, Name: badName, why: "only plain HTTP can be spoken on port 80"},
		{Do: "say", To: secure, Name: "HTTP/", Data: "GET / HTTP/1.1\r\nHost: " + badName + "\r\n\r\n", why: "only TLS can be spoken on port 443"},
		{Do: "say", To: secure, Name: "SSH", Data: "SSH-2.0-tunnel\r\n", why: "only TLS can be spoken on port 443"},
		{Do: "say", To: secure, Name: "HTTP/", Data: "\x00\x01\x02\x03", why: "only TLS can be spoken on port 443"},
		{Do: "say", To: plain, Name: "SSH", Data: "SSH-2.0-tunnel\r\n", why: "only plain HTTP can be spoken on port 80"},
		{Do: "say", To: plain, Name: badName, Data: "PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\nGET / HTTP/1.1\r\nHost: " + badName + "\r\n\r\n", why: "the header of a proxy"},
		http("GET / HTTP/1.1\r\nHost: "+badName+"\r\n\r\n", misled),
		http("GET / HTTP/1.1\r\nHost: "+sharedName+"\r\n\r\n", request(sharedName, plain)+sharedName+notAnswered),
		http("GET http://"+badName+"/ HTTP/1.1\r\nHost: "+goodName+"\r\n\r\n", request(badName, plain)),
		http("GET http://"+badName+"/ HTTP/1.1\r\nHost: "+badName+"\r\n\r\n", misled),
		http("GET / HTTP/1.0\r\n\r\n", request("", plain)+"a rule allows the name, so the request must have it"),
		http("CONNECT "+badName+":443 HTTP/1.1\r\nHost: "+badName+":443\r\n\r\n", request(badName, plain)+"the host of the request is not clear"),
		http("CONNECT "+goodName+":443 HTTP/1.1\r\nHost: "+goodName+":443\r\n\r\n", request(goodName, plain)+"the host of the request is not clear"),
		// A second request on a connection whose first was allowed.
		http("GET /1 HTTP/1.1\r\nHost: "+goodName+"\r\n\r\nGET /2 HTTP/1.1\r\nHost: "+badName+"\r\n\r\n", misled),
		{Do: "say", To: plain, Name: "this is " + badName, Split: true, why: misled,
			Data: "GET /1 HTTP/1.1\r\nHost: " + goodName + "\r\n\r\n|GET /2 HTTP/1.1\r\nHo|st: " + badName + "\r\n\r\n"},
		// A request hidden in the body of another one, for servers that disagree on where a body ends.
		{Do: "say", To: plain, Name: "this is " + badName, Data: "POST / HTTP/1.1\r\nHost: " + goodName + "\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n" +
			"0\r\n\r\nGET /3 HTTP/1.1\r\nHost: " + badName + "\r\n\r\n"},
		{Do: "say", To: plain, Name: "this is " + badName, Data: "GET / HTTP/1.1\r\nHost: " + goodName + "\r\nHost: " + badName + "\r\n\r\n"},
		{Do: "say", To: plain, Name: "this is " + badName, Data: "GET / HTTP/1.1\r\nHost: " + goodName + "\r\nX: y\n\nGET /4 HTTP/1.1\nHost: " + badName + "\r\n\r\n"},
		{Do: "say", To: plain, Name: "this is " + badName, Data: "GET / HTTP/1.1\r\nHost : " + badName + "\r\nHost: " + goodName + "\r\n\r\n"},
		{Do: "say", To: plain, Name: badName, Data: "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"},
		{Do: "say", To: plain, Name: "101 Switching", Data: "GET / HTTP/1.1\r\nHost: " + goodName + "\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n" +
			"HTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n"},
		// Redirects to other hosts.
		{Do: "get", To: "https://" + goodName + "/to?https://" + badName + "/", why: "name " + badName + ": " + noRule},
		{Do: "get", To: "http://" + goodName + "/to?http://" + badAddr4 + "/", why: flowTo("tcp", badAddr4+":80", noRule)},
		{Do: "get", To: "http://" + goodName + "/to?http://169.254.169.254/latest/meta-data/", why: flowTo("tcp", "169.254.169.254:80", special)},
		{Do: "get", To: "https://" + goodName + "/to?http://[::ffff:10.99.0.1]:7777/", why: flowTo("tcp", "10.99.0.1:7777", special)},
	}
	return numbered("speech", list)
}

// gatewayAttempts use the services on the gateway's address as a proxy.
func gatewayAttempts() []attempt {
	const refused = "nothing of that name is granted here"
	say := func(request, answer, why string) attempt {
		return attempt{Do: "say", To: "10.87.0.1:80", Name: answer, Data: request, why: why}
	}
	list := []attempt{
		say("CONNECT "+badName+":443 HTTP/1.1\r\nConnection: close\r\nHost: "+badName+":443\r\n\r\n", " 200 ", "request "+badName+":443"),
		say("CONNECT "+goodName+":443 HTTP/1.1\r\nConnection: close\r\nHost: "+goodName+":443\r\n\r\n", " 200 ", "request "+goodName+":443"),
		say("CONNECT 127.0.0.1:7070 HTTP/1.1\r\nConnection: close\r\nHost: caisson.internal\r\n\r\n", " 200 ", "request 127.0.0.1:7070 tcp: "+refused),
		say("GET http://"+badName+"/ HTTP/1.1\r\nHost: "+badName+"\r\nConnection: close\r\n\r\n", "this is", "request "+badName+" tcp: "+refused),
		say("GET http://"+badName+"/ HTTP/1.1\r\nHost: caisson.internal\r\nConnection: close\r\n\r\n", "this is", "request "+badName+" tcp: "+refused),
		say("GET http://"+badAddr4+"/ HTTP/1.1\r\nHost: "+badAddr4+"\r\nConnection: close\r\n\r\n", "this is", "request "+badAddr4+" tcp: "+refused),
		say("GET http://127.0.0.1:7070/v1/sandboxes HTTP/1.1\r\nHost: caisson.internal\r\nConnection: close\r\n\r\n", " 200 ", refused),
		say("GET /v1/sandboxes HTTP/1.1\r\nHost: caisson.internal\r\nConnection: close\r\n\r\n", " 200 ", ""),
		say("GET / HTTP/1.1\r\nHost: llm.caisson.internal\r\nConnection: close\r\n\r\n", " 200 ", "request llm.caisson.internal tcp: "+refused),
		say("CONNECT "+badName+":443 HTTP/1.1\r\nHost: llm.caisson.internal\r\nConnection: close\r\n\r\n", " 200 ", refused),
		say("GET / HTTP/1.1\r\nHost: other.caisson.internal\r\nConnection: close\r\n\r\n", " 200 ", "request other.caisson.internal tcp: "+refused),
		say("\x05\x01\x00", "\x05\x00", ""), say("\x04\x01\x01\xbb\xc6\x33\x64\x14\x00", "\x00\x5a", ""),
	}
	for i := range list {
		list[i].ID = fmt.Sprintf("%.40q", list[i].Data)
	}
	return numbered("virtual host", list)
}
