package e2e_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"unicode/utf8"
)

// The frames of the JSON subprotocol, server to client, as edge/README.md names them.

type welcomeFrame struct {
	Op              string   `json:"op"`
	Session         string   `json:"session"`
	Protocol        int      `json:"protocol"`
	Features        []string `json:"features"`
	HeartbeatMs     int64    `json:"heartbeatMs"`
	MaxMessageBytes int64    `json:"maxMessageBytes"`
}

type startedFrame struct {
	Op         string `json:"op"`
	ID         string `json:"id"`
	Topic      string `json:"topic"`
	TopicID    string `json:"topicId"`
	Partitions []struct {
		Partition  int32 `json:"partition"`
		Start      int64 `json:"start"`
		End        int64 `json:"end"`
		Incomplete bool  `json:"incomplete"`
	} `json:"partitions"`
}

type recordsFrame struct {
	Op        string               `json:"op"`
	ID        string               `json:"id"`
	Records   []recordJSON         `json:"records"`
	Positions map[string]placeJSON `json:"positions"`
}

type recordJSON struct {
	Topic     string               `json:"topic"`
	Partition int32                `json:"partition"`
	Offset    int64                `json:"offset"`
	Time      *int64               `json:"time"`
	TimeType  string               `json:"timeType"`
	Epoch     *int32               `json:"epoch"`
	Key       *string              `json:"key"`
	KeyBase64 *string              `json:"keyBase64"`
	Headers   [][2]json.RawMessage `json:"headers"`
	Value     json.RawMessage      `json:"value"`
	Text      *string              `json:"text"`
	Base64    *string              `json:"base64"`
	Tombstone *bool                `json:"tombstone"`
}

// placeJSON is an offset, or [offset, epoch].
type placeJSON struct {
	offset int64
	epoch  int32
}

func (p *placeJSON) UnmarshalJSON(text []byte) error {
	p.epoch = -1
	if text[0] != '[' {
		return json.Unmarshal(text, &p.offset)
	}
	var both []int64
	if err := json.Unmarshal(text, &both); err != nil || len(both) != 2 {
		return fmt.Errorf("position %s: %w", text, err)
	}
	p.offset, p.epoch = both[0], int32(both[1])
	return nil
}

func (p placeJSON) MarshalJSON() ([]byte, error) {
	if p.epoch < 0 {
		return json.Marshal(p.offset)
	}
	return json.Marshal([]int64{p.offset, int64(p.epoch)})
}

type gapFrame struct {
	Op        string `json:"op"`
	ID        string `json:"id"`
	Partition int32  `json:"partition"`
	From      int64  `json:"from"`
	To        int64  `json:"to"`
	Reason    string `json:"reason"`
	Records   int64  `json:"records"`
}

type heartbeatFrame struct {
	Op          string                          `json:"op"`
	Time        int64                           `json:"time"`
	Positions   map[string]map[string]placeJSON `json:"positions"`
	Lag         map[string]int64                `json:"lag"`
	Upstream    string                          `json:"upstream"`
	Unavailable map[string][]int32              `json:"unavailable"`
}

type publishedFrame struct {
	Op        string `json:"op"`
	ID        string `json:"id"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	Time      *int64 `json:"time"`
}

type errorFrame struct {
	Op           string  `json:"op"`
	Re           string  `json:"re"`
	ID           string  `json:"id"`
	Final        bool    `json:"final"`
	Code         string  `json:"code"`
	Reason       string  `json:"reason"`
	Message      string  `json:"message"`
	Retryable    bool    `json:"retryable"`
	Outcome      string  `json:"outcome"`
	RetryAfterMs int64   `json:"retryAfterMs"`
	Tags         []int64 `json:"tags"`
}

type goodbyeFrame struct {
	Op               string   `json:"op"`
	Code             int      `json:"code"`
	Reason           string   `json:"reason"`
	ReconnectAfterMs *[]int64 `json:"reconnectAfterMs"`
}

type idFrame struct {
	Op         string `json:"op"`
	ID         string `json:"id"`
	Reason     string `json:"reason"`
	Partitions int32  `json:"partitions"`
}

// strict decodes one JSON value and refuses fields that edge/README.md does not name.
func strict(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("decoding %.200q: %w", text, err)
	}
	if d.More() {
		return fmt.Errorf("more than one JSON value: %.200q", text)
	}
	return nil
}

// decode turns the JSON form of a record back into its bytes.
func (j *recordJSON) decode() (rec *record, epoch int32, err error) {
	rec, epoch = &record{partition: j.Partition, offset: j.Offset, time: -1}, -1
	if j.Time != nil {
		rec.time = *j.Time
	}
	if j.Epoch != nil {
		epoch = *j.Epoch
	}
	switch {
	case j.Key != nil && j.KeyBase64 != nil:
		return nil, 0, fmt.Errorf("both key and keyBase64")
	case j.Key != nil:
		rec.key = []byte(*j.Key)
	case j.KeyBase64 != nil:
		if rec.key, err = fromBase64(*j.KeyBase64); err != nil {
			return nil, 0, err
		}
		if utf8.Valid(rec.key) {
			return nil, 0, fmt.Errorf("keyBase64 for a key that is UTF-8")
		}
	}
	payloads := 0
	if j.Value != nil {
		payloads, rec.value = payloads+1, cloneBytes(j.Value)
	}
	if j.Text != nil {
		payloads, rec.value = payloads+1, []byte(*j.Text)
	}
	if j.Base64 != nil {
		payloads++
		if rec.value, err = fromBase64(*j.Base64); err != nil {
			return nil, 0, err
		}
	}
	if j.Tombstone != nil && *j.Tombstone {
		payloads++
	}
	if payloads != 1 {
		return nil, 0, fmt.Errorf("%d of value, text, base64, tombstone", payloads)
	}
	for _, pair := range j.Headers {
		h, err := decodeHeader(pair)
		if err != nil {
			return nil, 0, err
		}
		rec.headers = append(rec.headers, h)
	}
	return rec, epoch, nil
}

func decodeHeader(pair [2]json.RawMessage) (header, error) {
	var h header
	if err := json.Unmarshal(pair[0], &h.name); err != nil {
		return h, err
	}
	var text *string
	if err := json.Unmarshal(pair[1], &text); err == nil {
		if text != nil {
			h.value = []byte(*text)
		}
		return h, nil
	}
	var binary struct {
		Base64 *string `json:"base64"`
	}
	if err := strict(pair[1], &binary); err != nil {
		return h, err
	}
	if binary.Base64 == nil {
		return h, fmt.Errorf("header value %s", pair[1])
	}
	var err error
	h.value, err = fromBase64(*binary.Base64)
	return h, err
}

func fromBase64(text string) ([]byte, error) {
	decoded, err := base64.StdEncoding.Strict().DecodeString(text)
	if decoded == nil {
		decoded = []byte{}
	}
	return decoded, err
}
