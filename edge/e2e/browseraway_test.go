package e2e_test

import (
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"tailrace.dev/tailrace/services/kafka/kafkatest"
)

// TestPageWhileKafkaIsAway is a person at the page whose only broker is killed: the page says that nothing comes and why, a publish is refused, not
// unknown, and everything that is asked names Kafka, not the service. All goes on by itself when the broker is back.
func TestPageWhileKafkaIsAway(t *testing.T) {
	cluster := kafkatest.StartOwn(t, 1)
	j := newJudge(t, cluster.Bootstrap)
	topic, other := j.topic(2), j.topic(1)
	p := startPair(t, pairOptions{kafka: cluster.Bootstrap})
	get := func(url string) (status int, body string) {
		t.Helper()
		client := http.Client{Timeout: time.Minute}
		resp, err := client.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	b := openTab(t, "http://"+p.ws+"/#topic="+topic)
	b.awaitState("Live")
	publish := chromedp.Click(`#publish-form button[type=submit]`)
	b.run(publish)
	b.await("the publish is acknowledged", `document.getElementById('published').textContent.startsWith('Acknowledged')`)

	cluster.Kill9(t, 1)
	b.awaitState("Stalled")
	began := time.Now()
	b.run(publish)
	b.await("the publish is refused", `document.getElementById('published').textContent.startsWith('Refused')`)
	took := time.Since(began)
	b.await("the banner names Kafka", `document.getElementById('banner-text').textContent.startsWith('Kafka')`)
	b.screenshot("kafka-away-desktop")
	if _, health := get("http://" + p.rpcOps + "/healthz"); !strings.Contains(health, "none of its brokers can be reached") {
		t.Errorf("the service's health is %s", health)
	}
	if _, events := get("http://" + p.ws + "/sse/" + other); !strings.Contains(events, "the service cannot reach Kafka") || !strings.Contains(events, `"code":4003`) {
		t.Errorf("a stream that could not begin was told %s", events)
	}
	if status, text := get("http://" + p.ws + "/api/topics"); status != http.StatusOK && !strings.Contains(text, "the service cannot reach Kafka") {
		t.Errorf("topics: %d %s", status, text)
	}
	fresh := openTab(t, "http://"+p.ws+"/#topic="+other)
	fresh.awaitState("Topic unavailable")
	fresh.await("the banner names Kafka", `document.getElementById('banner-text').textContent.startsWith('the service cannot reach Kafka')`)
	fresh.screenshot("kafka-away-fresh")

	cluster.Restart(t, 1)
	b.awaitState("Live")
	fresh.awaitState("Live")
	fresh.await("the banner is gone", `document.getElementById('banner').hidden`)
	b.run(publish)
	b.await("the publish is acknowledged", `document.getElementById('published').textContent.startsWith('Acknowledged')`)
	b.await("both records came, and no other", rowCount+` === 2`)
	proof(t, "Kafka's only broker killed behind the page: told as stalled, a publish refused after %v, and back by itself", took)
}
