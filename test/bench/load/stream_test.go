package load

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// TestStreamedAnswers: the answer is the number of events that the shape has.
func TestStreamedAnswers(t *testing.T) {
	u, err := NewUpstream()
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	conn, err := net.Dial("tcp", u.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	shape := Long()[1]
	if _, err := conn.Write(shape.Request()); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if got := strings.Count(string(body), "data: "); err != nil || got != shape.Events || response.Header.Get("content-type") != "text/event-stream" {
		t.Errorf("%d events of %s (%v), want %d of text/event-stream", got, response.Header.Get("content-type"), err, shape.Events)
	}
}
