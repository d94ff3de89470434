package console_test

import (
	"fmt"
	"testing"
	"time"
)

// TestLooks opens the page at the sizes and in the colours that people use: nothing sticks out sideways, nothing throws. With
// -console.screenshots the pictures are written for people to look at.
func TestLooks(t *testing.T) {
	f := newFakeEdge(t)
	f.topic("demo", 4)
	f.topic("orders", 12)
	f.topic("a-topic-with-a-rather-long-name.eu-central-1.v2", 400)
	idle := group("nightly-export", 0, 4711, 0, 12, 900)
	idle["state"], idle["memberCount"], idle["members"] = "Empty", 0, []any{}
	f.setGroups("demo", group("billing", 42, 1200, 14, 0, -1), group("a-group-with-a-rather-long-name.eu-central-1.v2", 3, 5, 6, 7, 8, 9, 10, 11, 12, 13), idle)
	start := time.Now().Add(-3 * time.Minute).UnixMilli()
	for i := range 40 {
		f.add(demoRecord(i, start+int64(i)*1700))
	}
	for _, tt := range []struct {
		name string
		look look
	}{
		{"desktop", look{1280, 800, false}}, {"desktop-dark", look{1280, 800, true}},
		{"phone", look{390, 844, false}}, {"phone-dark", look{390, 844, true}}, {"phone-small", look{375, 667, false}}, {"tablet", look{900, 1100, false}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := openPage(t, f.url+"/#topic=demo&start=earliest", tt.look)
			p.awaitState("Live")
			p.await(`document.querySelectorAll('#records .row').length >= 40`)
			for i := range 12 {
				f.add(demoRecord(i, 0))
			}
			p.await(`document.querySelectorAll('#records .row').length >= 52`)
			check := func(name string) {
				t.Helper()
				p.screenshot(tt.name + name)
				if wide := eval[float64](p, `document.documentElement.scrollWidth - innerWidth`); wide > 0 {
					t.Errorf("%s sticks out by %v pixels", name, wide)
				}
			}
			check("")
			eval[any](p, `document.querySelectorAll('#records .row')[3].click()`)
			p.await(`!document.getElementById('inspector').hidden`)
			check("-inspector")
			eval[any](p, `document.getElementById('inspect-close').click(); document.getElementById('publish-toggle').click()`)
			check("-publish")
			eval[any](p, `document.getElementById('publish-toggle').click(); document.getElementById('partitions-toggle').click()`)
			p.await(`document.querySelectorAll('#partitions-body tr').length === 4`)
			eval[any](p, `document.getElementById('start').value = 'positions'; document.getElementById('start').dispatchEvent(new Event('change'))`)
			check("-partitions")
			eval[any](p, `document.getElementById('partitions-toggle').click(); document.getElementById('groups-toggle').click()`)
			p.await(`document.querySelectorAll('#groups-table tbody').length === 3 && !!document.querySelector('#groups-table .plot path').getAttribute('d')`)
			check("-groups")
			eval[any](p, `document.getElementById('partitions-toggle').click()`)
			check("-both")
			if high := eval[float64](p, `document.querySelector('.stage').clientHeight`); high < 100 {
				t.Errorf("with both panels %v pixels are left for the records", high)
			}
			eval[any](p, `document.getElementById('partitions-toggle').click()`)
			eval[any](p, `document.getElementById('groups-toggle').click()`)
			eval[any](p, `document.getElementById('help-toggle').click()`)
			check("-help")
			eval[any](p, `document.getElementById('help-close').click()`)
			f.each(func(s *fakeSession) {
				s.send(`{"op":"heartbeat","time":%d,"upstream":"unavailable"}`, time.Now().UnixMilli())
			})
			p.awaitState("Upstream unavailable")
			check("-upstream")
		})
	}
}

func demoRecord(i int, at int64) record {
	key := fmt.Sprintf("sensor-%d", i%7)
	r := record{
		Topic: "demo", Partition: int32(i*5) % 4, Time: at, Key: &key, Epoch: 3,
		Text: new(fmt.Sprintf(`{"sensor":%q,"temperature":%.1f,"humidity":%d,"at":"Hall %d","ok":true,"readings":[%d,%d,%d]}`, key, 18+float64(i%9)/2, 40+i%20, i%3, i, i+1, i+2)),
	}
	switch i % 10 {
	case 3:
		r.Headers = [][]any{{"trace-id", "4bf92f3577b34da6a3ce929d0e0e4736"}, {"source", "mqtt"}}
	case 5:
		r.Text = new("plain text, not JSON: door opened by badge 4711")
	case 7:
		r.Text, r.Tombstone = nil, true
	case 9:
		r.Key, r.Text, r.Base64 = nil, nil, "AAECA/7/gIGCg4SFhoeIiYqLjI2Oj5CRkpOUlZaXmJmam5ydnp+g"
	}
	return r
}
