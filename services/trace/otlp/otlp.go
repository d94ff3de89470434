// Package otlp takes spans to a receiver that speaks the OpenTelemetry Protocol over HTTP. Only commands import it: what comes with it, gRPC and
// its compressors among it, is in no program that only uses services/stream or edge.
package otlp

import (
	"context"
	"net/http"
	"net/url"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// defaultPath is that of OTLP over HTTP (OpenTelemetry Protocol, "OTLP/HTTP Request").
const defaultPath = "/v1/traces"

// Dial returns the exporter to an endpoint, which is an http or https URL; without a path, /v1/traces. It is a trace.Config's Dial. A batch may
// take, with its retries, as long as the client's Timeout; nothing is sent before there is one. Headers, such as credentials, are taken from
// OTEL_EXPORTER_OTLP_HEADERS. The exporter has no connection but the client's.
func Dial(ctx context.Context, endpoint string, client *http.Client) (sdktrace.SpanExporter, error) {
	u, err := url.Parse(endpoint)
	if err != nil {
		return nil, err
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = defaultPath
	}
	return otlptracehttp.New(ctx,
		otlptracehttp.WithEndpointURL(u.String()),
		otlptracehttp.WithHTTPClient(client),
		otlptracehttp.WithTimeout(client.Timeout),
		otlptracehttp.WithRetry(otlptracehttp.RetryConfig{
			Enabled: true, InitialInterval: 500 * time.Millisecond, MaxInterval: 3 * time.Second, MaxElapsedTime: client.Timeout,
		}),
	)
}
