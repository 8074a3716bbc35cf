//go:build unix

// Command server is a TURN server over UDP made of pion/turn, for comparison under load.
//
// One listener per thread shares the port by SO_REUSEPORT, which is how pion says that its server uses several CPUs. Sockets that clients send to
// get the same receive buffer as the other servers ask for; pion has no setting for those of relayed addresses.
package main

import (
	"context"
	"flag"
	"log"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/pion/turn/v5"
	"golang.org/x/sys/unix"
)

const receiveBufferBytes = 2 << 20

func main() {
	listen := flag.String("listen", "127.0.0.1:3478", "address and port for clients")
	relay := flag.String("relay", "127.0.0.1", "address of relayed transport addresses")
	user := flag.String("user", "", "name:password")
	realm := flag.String("realm", "example.org", "realm")
	threads := flag.Int("threads", 1, "listeners on the same port")
	flag.Parse()

	name, password, isPair := strings.Cut(*user, ":")
	if !isPair {
		log.Fatal("-user is name:password")
	}
	key := turn.GenerateAuthKey(name, *realm, password)
	relayIP := net.ParseIP(*relay)
	if relayIP == nil {
		log.Fatalf("-relay %s is no IP address", *relay)
	}

	shared := net.ListenConfig{Control: func(_, _ string, connection syscall.RawConn) error {
		var failure error
		err := connection.Control(func(descriptor uintptr) {
			failure = unix.SetsockoptInt(int(descriptor), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
			if failure == nil {
				failure = unix.SetsockoptInt(int(descriptor), unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBufferBytes)
			}
		})
		if err != nil {
			return err
		}
		return failure
	}}
	configs := make([]turn.PacketConnConfig, 0, *threads)
	for range *threads {
		socket, err := shared.ListenPacket(context.Background(), "udp", *listen)
		if err != nil {
			log.Fatal(err)
		}
		configs = append(configs, turn.PacketConnConfig{
			PacketConn: socket,
			RelayAddressGenerator: &turn.RelayAddressGeneratorStatic{
				RelayAddress: relayIP,
				Address:      relayIP.String(),
			},
		})
	}
	server, err := turn.NewServer(turn.ServerConfig{
		Realm: *realm,
		AuthHandler: func(request *turn.RequestAttributes) (string, []byte, bool) {
			return request.Username, key, request.Username == name
		},
		PacketConnConfigs: configs,
	})
	if err != nil {
		log.Fatal(err)
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGINT, syscall.SIGTERM)
	<-end
	if err := server.Close(); err != nil {
		log.Fatal(err)
	}
}
