package trace_test

import (
	"strings"
	"testing"

	"tailrace.dev/tailrace/services/trace"
)

// TestEnvironmentsAreChecked: what OpenTelemetry would print of its own variables, since it cannot read it, is a problem that shows no value.
func TestEnvironmentsAreChecked(t *testing.T) {
	for variable, want := range map[string]string{
		"OTEL_EXPORTER_OTLP_HEADERS=authorization=Bearer%20hunter2, x-scope = a": "",
		"OTEL_EXPORTER_OTLP_HEADERS=":                                            "",
		"OTEL_EXPORTER_OTLP_HEADERS=Bearer hunter2":                              "OTEL_EXPORTER_OTLP_HEADERS: number 1 has no equals sign; want name=value",
		"OTEL_EXPORTER_OTLP_HEADERS=a=b,authorization:hunter2=":                  "OTEL_EXPORTER_OTLP_HEADERS: number 2 has no name",
		"OTEL_EXPORTER_OTLP_TRACES_HEADERS=authorization=hunter2%2":              "OTEL_EXPORTER_OTLP_TRACES_HEADERS: the value of number 1 has a % that",
		"OTEL_EXPORTER_OTLP_HEADERS=authorization=hunter2\nhunter2":              "OTEL_EXPORTER_OTLP_HEADERS: the value of number 1 has a line break",
		"OTEL_EXPORTER_OTLP_HEADERS=authorization=hunter2,":                      "OTEL_EXPORTER_OTLP_HEADERS: number 2 has no equals sign",
		"OTEL_RESOURCE_ATTRIBUTES=deployment.environment=prod,hunter2":           "OTEL_RESOURCE_ATTRIBUTES: number 2 has no equals sign",
		"OTEL_RESOURCE_ATTRIBUTES=example.org/team=prod%20a":                     "",
		"OTEL_EXPORTER_OTLP_ENDPOINT=http://me:hun hunter2@a":                    "OTEL_EXPORTER_OTLP_ENDPOINT: is no URL",
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=https://a:4318":                      "",
		"OTEL_EXPORTER_OTLP_CERTIFICATE=/hunter2.pem":                            "OTEL_EXPORTER_OTLP_CERTIFICATE: has no effect here",
		"OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY=":                                  "",
		"OTHER=hunter2":                                                          "",
	} {
		problems := trace.CheckEnvironment([]string{"HOME=/", variable})
		if want == "" {
			if len(problems) > 0 {
				t.Errorf("%q: %v", variable, problems)
			}
			continue
		}
		if len(problems) != 1 || !strings.HasPrefix(problems[0].Error(), want) || strings.Contains(problems[0].Error(), "hunter2") {
			t.Errorf("%q: got %v, want %s", variable, problems, want)
		}
	}
}
