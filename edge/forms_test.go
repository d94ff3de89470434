package edge_test

import (
	"testing"

	"tailrace.dev/tailrace/services/hub/hubtest"
)

// TestFormsSideBySide: clients of every form that follow a topic by their URLs, and so stand at the same place, get each their own form.
func TestFormsSideBySide(t *testing.T) {
	cfg := config()
	cfg.Workers = 1
	r := start(t, cfg)
	r.src.CreateTopic("orders", 1)
	inJSON := r.dial(t, "/ws/orders")
	inProto, err := dial(r.addr, "/ws/orders?as=text", clientOptions{proto: true})
	if err != nil {
		t.Fatal(err)
	}
	defer inProto.conn.Close()
	inText := r.dial(t, "/ws/orders?as=text")
	events := r.stream(t, "/sse/orders")
	for _, c := range []*client{inJSON, inProto, inText} {
		c.until(t, "caughtup")
	}
	events.until(t, "caughtup")
	for range 50 {
		r.src.Append("orders", 0, hubtest.Text("k", "vé"), hubtest.Text("k", `{"a":1}`))
		for _, c := range []*client{inJSON, inProto, inText} {
			for n := 0; n < 2; {
				n += len(c.until(t, "records").Records)
			}
		}
		events.values(t, 2)
	}
}
