// Command pion relays messages to a transforming peer with pion/turn's client and prints one JSON object about it.
//
// It allocates, asks for a permission, sends its first messages as Send indications and, once pion has bound a channel,
// the rest as ChannelData. One message is outstanding at a time, so every answer is checked against what was sent.
package main

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/pion/dtls/v3"
	"github.com/pion/turn/v5"
)

const answerTimeout = 60 * time.Second

// report is what the test reads.
type report struct {
	Relayed     string `json:"relayed"`
	Mapped      string `json:"mapped"`
	Sent        int    `json:"sent"`
	Received    int    `json:"received"`
	SentBytes   int    `json:"sent_bytes"`
	Elsewhere   int    `json:"answers_from_elsewhere"`
	Differing   int    `json:"answers_that_differ"`
	ChannelSent uint64 `json:"channel_data_sent"`
	ChannelRcvd uint64 `json:"channel_data_received"`
	SendSent    uint64 `json:"send_indications_sent"`
	DataRcvd    uint64 `json:"data_indications_received"`
}

// framings counts, on the client's own socket, how messages are framed towards and from the server.
type framings struct {
	net.PacketConn
	channelSent, channelReceived, sendIndications, dataIndications atomic.Uint64
}

const (
	sendIndication = 0x0016
	dataIndication = 0x0017
)

func isChannelData(message []byte) bool { return len(message) > 0 && message[0]>>6 == 1 }

func isStun(message []byte, kind int) bool {
	return len(message) >= 20 && int(message[0])<<8|int(message[1]) == kind
}

func (f *framings) WriteTo(message []byte, to net.Addr) (int, error) {
	switch {
	case isChannelData(message):
		f.channelSent.Add(1)
	case isStun(message, sendIndication):
		f.sendIndications.Add(1)
	}

	return f.PacketConn.WriteTo(message, to)
}

func (f *framings) ReadFrom(buffer []byte) (int, net.Addr, error) {
	length, from, err := f.PacketConn.ReadFrom(buffer)
	if err == nil {
		switch message := buffer[:length]; {
		case isChannelData(message):
			f.channelReceived.Add(1)
		case isStun(message, dataIndication):
			f.dataIndications.Add(1)
		}
	}

	return length, from, err
}

// transformed is what the peer answers: the payload reversed, each octet XORed with 0x5A.
func transformed(payload []byte) []byte {
	answer := make([]byte, len(payload))
	for i, octet := range payload {
		answer[len(payload)-1-i] = octet ^ 0x5A
	}

	return answer
}

// records makes a message of each record; a connection of pion's STUNConn would want the padding that only streams have.
type records struct{ net.Conn }

func (r records) ReadFrom(buffer []byte) (int, net.Addr, error) {
	length, err := r.Read(buffer)

	return length, r.RemoteAddr(), err
}

func (r records) WriteTo(message []byte, _ net.Addr) (int, error) { return r.Write(message) }

// connect opens what carries the client's messages.
func connect(transport, server string) (net.PacketConn, error) {
	switch transport {
	case "tcp":
		connection, err := net.Dial("tcp", server)
		if err != nil {
			return nil, err
		}

		return turn.NewSTUNConn(connection), nil
	case "tls":
		connection, err := tls.Dial("tcp", server, &tls.Config{
			InsecureSkipVerify: true, //nolint:gosec // the harness signs the server's certificate by itself
			NextProtos:         []string{"stun.turn"},
		})
		if err != nil {
			return nil, err
		}

		return turn.NewSTUNConn(connection), nil
	case "dtls":
		address, err := net.ResolveUDPAddr("udp", server)
		if err != nil {
			return nil, err
		}
		connection, err := dtls.Dial("udp", address, &dtls.Config{
			InsecureSkipVerify: true, //nolint:gosec // as above
			SupportedProtocols: []string{"stun.turn"},
		})
		if err != nil {
			return nil, err
		}

		return records{connection}, nil
	default:
		return net.ListenPacket("udp", ":0")
	}
}

func run() (report, error) {
	server := flag.String("server", "", "TURN server, address:port")
	user := flag.String("user", "", "user name")
	password := flag.String("password", "", "password")
	realm := flag.String("realm", "", "realm")
	peerText := flag.String("peer", "", "transforming peer, address:port")
	relayFamily := flag.Int("relay-family", 4, "address family of the relayed transport address: 4 or 6")
	overChannel := flag.Int("over-channel", 1000, "messages to send once the channel is bound")
	transport := flag.String("transport", "udp", "between client and server: udp, tcp, tls or dtls (whose certificate is not checked)")
	longest := flag.Int("longest", 1200, "longest payload in octets")
	flag.Parse()

	var result report
	peer, err := net.ResolveUDPAddr("udp", *peerText)
	if err != nil {
		return result, err
	}
	family := turn.RequestedAddressFamilyIPv4
	if *relayFamily == 6 {
		family = turn.RequestedAddressFamilyIPv6
	}
	socket, err := connect(*transport, *server)
	if err != nil {
		return result, err
	}
	counted := &framings{PacketConn: socket}
	client, err := turn.NewClient(&turn.ClientConfig{
		STUNServerAddr:         *server,
		TURNServerAddr:         *server,
		Username:               *user,
		Password:               *password,
		Realm:                  *realm,
		Conn:                   counted,
		RequestedAddressFamily: family,
	})
	if err != nil {
		return result, err
	}
	defer client.Close()
	if err := client.Listen(); err != nil {
		return result, err
	}
	mapped, err := client.SendBindingRequest()
	if err != nil {
		return result, fmt.Errorf("binding: %w", err)
	}
	result.Mapped = mapped.String()
	relay, err := client.Allocate()
	if err != nil {
		return result, fmt.Errorf("allocate: %w", err)
	}
	result.Relayed = relay.LocalAddr().String()
	if err := client.CreatePermission(peer); err != nil {
		return result, fmt.Errorf("create permission: %w", err)
	}

	random := rand.NewChaCha8([32]byte{})
	exchange := func(length int) error {
		payload := make([]byte, length)
		_, _ = random.Read(payload)
		if _, err := relay.WriteTo(payload, peer); err != nil {
			return fmt.Errorf("send: %w", err)
		}
		result.Sent++
		result.SentBytes += length
		answer := make([]byte, 65536)
		if err := relay.SetReadDeadline(time.Now().Add(answerTimeout)); err != nil {
			return err
		}
		received, from, err := relay.ReadFrom(answer)
		if err != nil {
			return fmt.Errorf("no answer to message %d of %d octets: %w", result.Sent, length, err)
		}
		result.Received++
		if from.String() != peer.String() {
			result.Elsewhere++
		}
		if !bytes.Equal(answer[:received], transformed(payload)) {
			result.Differing++
		}

		return nil
	}

	shortest := 1
	if *transport != "udp" {
		shortest = 5 // in a stream pion takes a channel message of fewer than nine octets for an incomplete one
	}

	// pion sends indications until its ChannelBind, started by the first message, has succeeded.
	deadline := time.Now().Add(answerTimeout)
	for counted.channelSent.Load() == 0 {
		if time.Now().After(deadline) {
			return result, fmt.Errorf("no channel was bound within %s", answerTimeout)
		}
		if err := exchange(shortest + result.Sent%*longest); err != nil {
			return result, err
		}
	}
	for i := range *overChannel {
		if err := exchange(shortest + i%*longest); err != nil {
			return result, err
		}
	}
	if err := relay.Close(); err != nil {
		return result, fmt.Errorf("deallocate: %w", err)
	}
	result.ChannelSent = counted.channelSent.Load()
	result.ChannelRcvd = counted.channelReceived.Load()
	result.SendSent = counted.sendIndications.Load()
	result.DataRcvd = counted.dataIndications.Load()

	return result, nil
}

func main() {
	result, err := run()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(result); err != nil {
		os.Exit(1)
	}
}
