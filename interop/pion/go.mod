module turnbuckle/interop/pion

go 1.24.0

require (
	github.com/pion/dtls/v3 v3.1.9
	github.com/pion/turn/v5 v5.1.2
	golang.org/x/sys v0.41.0
)

require (
	github.com/pion/logging v0.2.4 // indirect
	github.com/pion/randutil v0.1.0 // indirect
	github.com/pion/stun/v4 v4.0.1 // indirect
	github.com/pion/transport/v5 v5.0.0 // indirect
	github.com/wlynxg/anet v0.0.5 // indirect
	golang.org/x/crypto v0.48.0 // indirect
)
