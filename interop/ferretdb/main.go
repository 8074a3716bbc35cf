//go:build unix

// Command ferretdb is a server of MongoDB's protocol on PostgreSQL, made of FerretDB, for tests of the driver.
//
// It tells of no changes and knows no SCRAM: what depends on these two is tried with it nowhere.
package main

import (
	"context"
	"flag"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/FerretDB/FerretDB/ferretdb"
)

func main() {
	listen := flag.String("listen", "", "address and port in the clear")
	listenTLS := flag.String("listen-tls", "", "address and port for TLS")
	certificate := flag.String("certificate", "", "file with the certificate for TLS")
	key := flag.String("key", "", "file with the key for TLS")
	authority := flag.String("authority", "", "file with the authority whose certificate each client by TLS needs; without it they need none")
	postgres := flag.String("postgresql", "", "URL of the database that holds everything")
	flag.Parse()

	server, err := ferretdb.New(&ferretdb.Config{
		Listener: ferretdb.ListenerConfig{
			TCP:         *listen,
			TLS:         *listenTLS,
			TLSCertFile: *certificate,
			TLSKeyFile:  *key,
			TLSCAFile:   *authority,
		},
		Logger:        slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Handler:       "postgresql",
		PostgreSQLURL: *postgres,
	})
	if err != nil {
		log.Fatal(err)
	}
	until, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := server.Run(until); err != nil {
		log.Fatal(err)
	}
}
