// quic-go on either side of the QUIC bench. It speaks the exchange of `turnbuckle quic-server` and `turnbuckle quic-client`
// (crates/load/src/quic/exchange.rs), checks lengths and CRC-32 as they do, and prints the same events.
package main

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/quic-go/quic-go/qlogwriter"
)

const (
	window = 16 << 20 // bytes that may wait in a connection, each way
	period = 65521    // bytes after which the payload repeats
	mib    = 1 << 20
)

var block = makeBlock()

func makeBlock() []byte {
	state := uint64(0x9e3779b97f4a7c15)
	bytes := make([]byte, period)
	for i := range bytes {
		state ^= state << 13
		state ^= state >> 7
		state ^= state << 17
		bytes[i] = byte(state >> 56)
	}
	return bytes
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "quic-go-peer:", err)
		os.Exit(1)
	}
}

func run(arguments []string) error {
	if len(arguments) == 0 {
		return errors.New("usage: quic-go-peer server|client|request ...")
	}
	flags := flag.NewFlagSet(arguments[0], flag.ExitOnError)
	mtu := flags.Uint("mtu", 1350, "largest packet, bytes of UDP payload")
	switch arguments[0] {
	case "server":
		listen := flags.String("listen", "", "address to receive at")
		if err := flags.Parse(arguments[1:]); err != nil {
			return err
		}
		return serve(*listen, uint16(*mtu))
	case "client":
		server := flags.String("server", "", "address of the server")
		up := flags.String("up", "", "bytes to send, in MiB, separated by commas")
		down := flags.String("down", "", "bytes to ask for, in MiB")
		runs := flags.Int("runs", 10, "runs of each size")
		warmUp := flags.Int("warm-up", 1, "runs before these that do not count")
		timeout := flags.Duration("timeout", 30*time.Second, "time that a run may take")
		resume := flags.Bool("resume", false, "resume the session of the first connection")
		changesPath := flags.Bool("change-path", false, "go on from another port in the middle of each transfer (RFC 9000, section 9.2)")
		countsKeys := flags.Bool("count-key-updates", false, "say how often the keys have become others, which it does by itself after 100 packets")
		if err := flags.Parse(arguments[1:]); err != nil {
			return err
		}
		client := client{
			server: *server, timeout: *timeout, mtu: uint16(*mtu), changesPath: *changesPath, countsKeys: *countsKeys, tls: clientTLS(),
		}
		if *resume {
			client.tls.ClientSessionCache = tls.NewLRUClientSessionCache(4)
		}
		for _, task := range []struct {
			isUp  bool
			sizes string
		}{{true, *up}, {false, *down}} {
			for _, text := range strings.FieldsFunc(task.sizes, func(c rune) bool { return c == ',' }) {
				size, err := strconv.ParseUint(text, 10, 20)
				if err != nil {
					return err
				}
				for number := range *warmUp + *runs {
					if err := client.transfer(task.isUp, size*mib, number >= *warmUp); err != nil {
						return err
					}
				}
			}
		}
		return nil
	case "request":
		server := flags.String("server", "", "address of the server")
		if err := flags.Parse(arguments[1:]); err != nil {
			return err
		}
		return request(*server, uint16(*mtu))
	}
	return fmt.Errorf("%q: allowed are server, client and request", arguments[0])
}

func config(mtu uint16) *quic.Config {
	return &quic.Config{
		InitialPacketSize:              mtu,
		DisablePathMTUDiscovery:        true,
		InitialStreamReceiveWindow:     window,
		MaxStreamReceiveWindow:         window,
		InitialConnectionReceiveWindow: window,
		MaxConnectionReceiveWindow:     window,
		MaxIdleTimeout:                 30 * time.Second,
	}
}

func event(fields map[string]any) {
	line, err := json.Marshal(fields)
	if err != nil {
		panic(err)
	}
	fmt.Println(string(line))
}

func serve(listen string, mtu uint16) error {
	certified, err := serverTLS()
	if err != nil {
		return err
	}
	address, err := net.ResolveUDPAddr("udp", listen)
	if err != nil {
		return err
	}
	socket, err := net.ListenUDP("udp", address)
	if err != nil {
		return err
	}
	transport := &quic.Transport{
		Conn: socket,
		// As ours: an address proves itself first.
		VerifySourceAddress: func(net.Addr) bool { return true },
	}
	listener, err := transport.Listen(certified, config(mtu))
	if err != nil {
		return err
	}
	event(map[string]any{"event": "ready", "listen": socket.LocalAddr().String()})
	for {
		connection, err := listener.Accept(context.Background())
		if err != nil {
			return err
		}
		go func() {
			for {
				stream, err := connection.AcceptStream(context.Background())
				if err != nil {
					return // closed by the client
				}
				go func() {
					if err := answer(stream); err != nil {
						stream.CancelWrite(1)
						stream.CancelRead(1)
					}
				}()
			}
		}()
	}
}

func answer(stream *quic.Stream) error {
	head := make([]byte, 8)
	if _, err := io.ReadFull(stream, head); err != nil {
		return err
	}
	count, hash, err := take(stream)
	if err != nil {
		return err
	}
	if _, err := stream.Write(seal(count, hash)); err != nil {
		return err
	}
	if err := send(stream, binary.BigEndian.Uint64(head)); err != nil {
		return err
	}
	return stream.Close()
}

// seal returns a length and a CRC-32 as an answer begins with them.
func seal(count uint64, hash uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(nil, count), hash)
}

func take(from io.Reader) (count uint64, hash uint32, err error) {
	buffer := make([]byte, 256*1024)
	for {
		n, err := from.Read(buffer)
		count += uint64(n)
		hash = crc32.Update(hash, crc32.IEEETable, buffer[:n])
		if err == io.EOF {
			return count, hash, nil
		}
		if err != nil {
			return count, hash, err
		}
	}
}

func send(to io.Writer, left uint64) error {
	for left > 0 {
		piece := block[:min(left, period)]
		if _, err := to.Write(piece); err != nil {
			return err
		}
		left -= uint64(len(piece))
	}
	return nil
}

type crc struct{ hash uint32 }

func (c *crc) Write(bytes []byte) (int, error) {
	c.hash = crc32.Update(c.hash, crc32.IEEETable, bytes)
	return len(bytes), nil
}

// client says how all transfers are made.
type client struct {
	server      string
	timeout     time.Duration
	mtu         uint16
	changesPath bool
	countsKeys  bool
	tls         *tls.Config
}

func (c *client) transfer(isUp bool, size uint64, counts bool) error {
	expected := crc{}
	if err := send(&expected, size); err != nil {
		return err
	}
	var sent, wanted uint64
	var sentHash, wantedHash uint32
	direction := "down"
	if isUp {
		sent, sentHash, direction = size, expected.hash, "up"
	} else {
		wanted, wantedHash = size, expected.hash
	}
	bound, cancel := context.WithTimeout(context.Background(), c.timeout)
	defer cancel()
	address, err := net.ResolveUDPAddr("udp", c.server)
	if err != nil {
		return err
	}
	socket, err := net.ListenUDP("udp", nil)
	if err != nil {
		return err
	}
	defer socket.Close()
	transport := &quic.Transport{Conn: socket}
	defer transport.Close()
	other := &path{}
	defer other.close()
	keys, settings := &keys{}, config(c.mtu)
	if c.countsKeys {
		settings.Tracer = func(context.Context, bool, quic.ConnectionID) qlogwriter.Trace { return keys }
	}
	began := time.Now()
	connection, err := transport.Dial(bound, address, c.tls, settings)
	if err != nil {
		return err
	}
	connected, cpuBefore := time.Now(), cpu()
	stream, err := connection.OpenStreamSync(bound)
	if err != nil {
		return err
	}
	if deadline, ok := bound.Deadline(); ok {
		if err := stream.SetDeadline(deadline); err != nil {
			return err
		}
	}
	change := func() error {
		if !c.changesPath {
			return nil
		}
		return other.take(bound, connection)
	}
	sending := make(chan error, 1)
	go func() {
		half := sent / 2 / period * period
		_, err := stream.Write(binary.BigEndian.AppendUint64(nil, wanted))
		if err == nil {
			err = send(stream, half)
		}
		if err == nil && isUp {
			err = change()
		}
		if err == nil {
			err = send(stream, sent-half)
		}
		if err == nil {
			err = stream.Close()
		}
		sending <- err
	}()
	head := make([]byte, 12)
	if _, err := io.ReadFull(stream, head); err != nil {
		return err
	}
	if !isUp {
		if err := change(); err != nil {
			return err
		}
	}
	count, hash, err := take(stream)
	if err != nil {
		return err
	}
	if err := <-sending; err != nil {
		return err
	}
	took, cpuTime := time.Since(connected), cpu()-cpuBefore
	if string(head) != string(seal(sent, sentHash)) || count != wanted || hash != wantedHash {
		return errors.New("other bytes arrived than were sent")
	}
	resumed := connection.ConnectionState().TLS.DidResume
	if err := connection.CloseWithError(0, "done"); err != nil {
		return err
	}
	if counts {
		event(map[string]any{
			"event":           "run",
			"direction":       direction,
			"bytes":           size,
			"mib_per_s":       float64(size) / mib / took.Seconds(),
			"seconds":         took.Seconds(),
			"handshake_ms":    float64(connected.Sub(began).Microseconds()) / 1e3,
			"cpu_ns_per_byte": float64(cpuTime.Nanoseconds()) / float64(size),
			"resumed":         resumed,
			"key_updates":     keys.updates.Load(),
		})
	}
	return nil
}

// request connects to a server of HTTP/3, and says what comes on its control stream and with which code it rejects a request.
func request(server string, mtu uint16) error {
	bound, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	offered := clientTLS()
	offered.NextProtos = []string{"h3"}
	connection, err := quic.DialAddr(bound, server, offered, config(mtu))
	if err != nil {
		return err
	}
	control, err := connection.AcceptUniStream(bound)
	if err != nil {
		return err
	}
	head := make([]byte, 2)
	if _, err := io.ReadFull(control, head); err != nil {
		return err
	}
	stream, err := connection.OpenStreamSync(bound)
	if err != nil {
		return err
	}
	// HEADERS with a field section of no fields.
	if _, err := stream.Write([]byte{1, 2, 0, 0}); err != nil {
		return err
	}
	_, err = io.ReadAll(stream)
	var rejected *quic.StreamError
	if !errors.As(err, &rejected) {
		return fmt.Errorf("the request was not rejected: %w", err)
	}
	event(map[string]any{"event": "rejected", "control": fmt.Sprintf("%x", head), "code": uint64(rejected.ErrorCode)})
	return connection.CloseWithError(0x100, "done")
}

// cpu returns the CPU time of the process so far, user and system.
func cpu() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
