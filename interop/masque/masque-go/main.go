// masque-go as a client of tunnels of UDP in HTTP/3 (RFC 9298) and as a proxy for them, and quic-go as an HTTP/3 server for them to lead to.
//
// Each command prints one JSON object.
package main

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"runtime"
	"time"

	"github.com/quic-go/masque-go"
	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/http3"
	"github.com/yosida95/uritemplate/v3"
)

// As many datagrams are under way as the buffer of a relay socket holds.
const window = 10

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "masque-go-peer:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) == 0 {
		return errors.New("usage: masque-go-peer echo|get|serve|proxy ...")
	}
	flags := flag.NewFlagSet(arguments[0], flag.ExitOnError)
	proxy := flags.String("proxy", "", "address of the relay")
	target := flags.String("target", "", "address that the tunnel leads to")
	user := flags.String("user", "", "name and password, with a colon")
	timeout := flags.Duration("timeout", 60*time.Second, "time for all of it")
	count := flags.Int("count", 1000, "datagrams")
	size := flags.Int("size", 160, "bytes of each")
	listen := flags.String("listen", "", "address to serve at")
	certificate := flags.String("certificate", "", "file with the proxy's certificate")
	key := flags.String("key", "", "file with its key")
	threads := flags.Int("threads", 0, "threads of the proxy that run at a time; 0 for as many as there are CPUs")
	if err := flags.Parse(arguments[1:]); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), *timeout)
	defer cancel()
	if arguments[0] == "serve" {
		return serve(*listen)
	}
	if arguments[0] == "proxy" {
		runtime.GOMAXPROCS(*threads)
		return forward(*listen, *certificate, *key, *user)
	}
	tunnel, response, err := dial(ctx, *proxy, *target, *user)
	if err != nil {
		if response == nil {
			return err
		}
		return report(map[string]any{"status": response.StatusCode, "proxy_status": response.Header.Get("Proxy-Status")})
	}
	defer tunnel.Close()
	switch arguments[0] {
	case "echo":
		return echo(tunnel, response, *count, *size, time.Now().Add(*timeout))
	case "get":
		return get(ctx, tunnel, *target)
	}
	return fmt.Errorf("no such command: %s", arguments[0])
}

func report(values map[string]any) error {
	return json.NewEncoder(os.Stdout).Encode(values)
}

func dial(ctx context.Context, proxy, target, user string) (*masque.Conn, *http.Response, error) {
	template, err := uritemplate.New("https://" + proxy + "/.well-known/masque/udp/{target_host}/{target_port}/")
	if err != nil {
		return nil, nil, err
	}
	request, err := masque.NewRequest(ctx, template, target)
	if err != nil {
		return nil, nil, err
	}
	if user != "" {
		request.Header().Set("Proxy-Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(user)))
	}
	transport := masque.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{http3.NextProtoH3}},
		QUICConfig:      &quic.Config{EnableDatagrams: true, InitialPacketSize: 1350},
	}
	return transport.Dial(request)
}

// Sends datagrams to a target that sends them back upside down, and counts those that come back as they have to.
func echo(tunnel *masque.Conn, response *http.Response, count, size int, deadline time.Time) error {
	if err := tunnel.SetReadDeadline(deadline); err != nil {
		return err
	}
	came, buffer := 0, make([]byte, 65536)
	for sent := 0; sent < count; {
		expected := map[string]bool{}
		for ; sent < count && len(expected) < window; sent++ {
			payload := bytes.Repeat([]byte{byte(sent >> 16), byte(sent >> 8), byte(sent)}, size/3+1)[:size]
			binary.BigEndian.PutUint32(payload, uint32(sent))
			if _, err := tunnel.WriteTo(payload, nil); err != nil {
				return err
			}
			reversed := make([]byte, size)
			for index, octet := range payload {
				reversed[size-1-index] = octet
			}
			expected[string(reversed)] = true
		}
		for len(expected) > 0 {
			length, _, err := tunnel.ReadFrom(buffer)
			if err != nil {
				return fmt.Errorf("%d of %d came: %w", came, sent, err)
			}
			if !expected[string(buffer[:length])] {
				return fmt.Errorf("unexpected: %x", buffer[:length])
			}
			delete(expected, string(buffer[:length]))
			came++
		}
	}
	return report(map[string]any{
		"status": response.StatusCode, "proxy_status": response.Header.Get("Proxy-Status"),
		"capsule_protocol": response.Header.Get("Capsule-Protocol"), "sent": count, "came": came,
	})
}

// Gets a page by HTTP/3 through the tunnel.
func get(ctx context.Context, tunnel *masque.Conn, target string) error {
	remote, err := net.ResolveUDPAddr("udp", target)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http3.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{http3.NextProtoH3}},
		Dial: func(ctx context.Context, _ string, tlsConfig *tls.Config, quicConfig *quic.Config) (*quic.Conn, error) {
			quicConfig = quicConfig.Clone()
			quicConfig.DisablePathMTUDiscovery = true
			quicConfig.InitialPacketSize = 1200
			return quic.DialEarly(ctx, tunnel, remote, tlsConfig, quicConfig)
		},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+target+"/page", nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	sum := sha256.Sum256(body)
	return report(map[string]any{"status": response.StatusCode, "len": len(body), "sha256": hex.EncodeToString(sum[:])})
}

// Serves a page of 1 MiB by HTTP/3, in packets that fit into a tunnel, until it is ended.
func serve(listen string) error {
	page := bytes.Repeat([]byte("turnbuckle page\n"), 1<<16)
	certificate, err := selfSigned()
	if err != nil {
		return err
	}
	socket, err := net.ListenPacket("udp", listen)
	if err != nil {
		return err
	}
	server := http3.Server{
		Handler: http.HandlerFunc(func(writer http.ResponseWriter, _ *http.Request) {
			_, _ = writer.Write(page)
		}),
		TLSConfig:  &tls.Config{Certificates: []tls.Certificate{certificate}},
		QUICConfig: &quic.Config{DisablePathMTUDiscovery: true, InitialPacketSize: 1200},
	}
	sum := sha256.Sum256(page)
	if err := report(map[string]any{"address": socket.LocalAddr().String(), "len": len(page), "sha256": hex.EncodeToString(sum[:])}); err != nil {
		return err
	}
	return server.Serve(socket)
}

// Opens tunnels for one user until it is ended.
func forward(listen, certificate, key, user string) error {
	template, err := uritemplate.New("https://" + listen + "/.well-known/masque/udp/{target_host}/{target_port}/")
	if err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return err
	}
	expected := "Basic " + base64.StdEncoding.EncodeToString([]byte(user))
	proxy := masque.Proxy{}
	defer proxy.Close()
	server := http3.Server{
		Addr:            listen,
		EnableDatagrams: true,
		TLSConfig:       http3.ConfigureTLSConfig(&tls.Config{Certificates: []tls.Certificate{pair}}),
		QUICConfig:      &quic.Config{EnableDatagrams: true},
		Handler: http.HandlerFunc(func(writer http.ResponseWriter, request *http.Request) {
			if request.Header.Get("Proxy-Authorization") != expected {
				writer.WriteHeader(http.StatusProxyAuthRequired)
				return
			}
			asked, err := masque.ParseProxyRequest(request, template)
			if err != nil {
				writer.WriteHeader(http.StatusBadRequest)
				return
			}
			_ = proxy.Proxy(writer, asked)
		}),
	}
	return server.ListenAndServe()
}

func selfSigned() (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	template := x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"target.test"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, &key.PublicKey, key)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}
