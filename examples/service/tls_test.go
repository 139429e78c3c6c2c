package main_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/cogwheel-go/cogwheel/internal/redistest"
)

// certify writes a certificate for 127.0.0.1 that is its own authority, and its key, and returns the files.
func certify(t *testing.T) (certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
	}
	public, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	require.NoError(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	require.NoError(t, err)
	dir := t.TempDir()
	write := func(name, kind string, der []byte) string {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600))
		return file
	}
	return write("certificate.pem", "CERTIFICATE", public), write("key.pem", "PRIVATE KEY", secret)
}

// listenTLS returns an address at which the server is reached by TLS: a port that the server opens, or if it was
// built without TLS, a proxy in front of it.
func listenTLS(t *testing.T, server *redistest.Server, certificate, key string) (addr string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr = listener.Addr().String()
	port := strconv.Itoa(listener.Addr().(*net.TCPAddr).Port) //nolint:forcetypeassert // of a TCP listener
	require.NoError(t, listener.Close())
	rdb := server.Client(t, func(o *redis.Options) { o.Password = "secret" })
	for _, option := range [][2]string{
		{"tls-cert-file", certificate}, {"tls-key-file", key}, {"tls-auth-clients", "no"}, {"tls-port", port},
	} {
		if err := rdb.ConfigSet(t.Context(), option[0], option[1]).Err(); err != nil {
			t.Logf("a proxy terminates TLS, as the server does not: %v", err)
			return proxyTLS(t, server, certificate, key)
		}
	}
	return addr
}

// proxyTLS returns the address of a listener for TLS that passes connections on to the server.
func proxyTLS(t *testing.T, server *redistest.Server, certificate, key string) (addr string) {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(certificate, key)
	require.NoError(t, err)
	config := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	require.NoError(t, err)
	var running sync.WaitGroup
	pass := func(to, from net.Conn) {
		defer to.Close()
		_, _ = io.Copy(to, from)
	}
	running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			plain, err := net.Dial("tcp", server.Addr())
			if err != nil {
				_ = client.Close()
				continue
			}
			running.Go(func() { pass(plain, client) })
			running.Go(func() { pass(client, plain) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		running.Wait() // the clients have closed their connections
	})
	return listener.Addr().String()
}
