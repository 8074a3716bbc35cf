package main

import (
	"context"
	"net"
	"sync/atomic"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/qlog"
	"github.com/quic-go/quic-go/qlogwriter"
)

// path is a second way to the server, from another port.
type path struct {
	socket    *net.UDPConn
	transport *quic.Transport
}

// take has the connection go on by it once the server has answered there.
func (p *path) take(bound context.Context, connection *quic.Conn) error {
	socket, err := net.ListenUDP("udp", nil)
	if err != nil {
		return err
	}
	p.socket, p.transport = socket, &quic.Transport{Conn: socket}
	way, err := connection.AddPath(p.transport)
	if err != nil {
		return err
	}
	if err := way.Probe(bound); err != nil {
		return err
	}
	return way.Switch()
}

func (p *path) close() {
	if p.transport != nil {
		_ = p.transport.Close()
		_ = p.socket.Close()
	}
}

// keys counts how often the keys of a connection have been updated (RFC 9001, section 6).
type keys struct{ updates atomic.Int64 }

func (k *keys) AddProducer() qlogwriter.Recorder { return k }

func (k *keys) RecordEvent(event qlogwriter.Event) {
	// Both directions are told of each.
	if updated, ok := event.(qlog.KeyUpdated); ok && updated.KeyPhase > 0 && updated.KeyType == qlog.KeyTypeClient1RTT {
		k.updates.Add(1)
	}
}

func (k *keys) Close() error { return nil }
