package trace

import (
	"fmt"
	"net/url"
	"strings"
)

// CheckEnvironment says what is wrong with the variables of OpenTelemetry that the exporter and the SDK read by themselves. What they cannot
// read they would leave out, and print to standard error as it is, credentials too. environ is os.Environ(). Values are in no error.
func CheckEnvironment(environ []string) (problems []error) {
	for _, variable := range environ {
		name, value, _ := strings.Cut(variable, "=")
		switch name {
		case "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT":
			if _, err := url.Parse(value); err != nil {
				problems = append(problems, fmt.Errorf("%s: is no URL; -trace.endpoint is what counts, so leave it out", name))
			}
		case "OTEL_EXPORTER_OTLP_CERTIFICATE", "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE",
			"OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE", "OTEL_EXPORTER_OTLP_CLIENT_KEY", "OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY":
			if value != "" {
				problems = append(problems, fmt.Errorf("%s: has no effect here; the authorities are the system's, or those in the file of SSL_CERT_FILE, and there is no certificate of the client's; leave it out", name))
			}
		case "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_RESOURCE_ATTRIBUTES":
			if why := badPairs(value, name != "OTEL_RESOURCE_ATTRIBUTES"); why != "" {
				problems = append(problems, fmt.Errorf("%s: %s; want name=value, separated by commas, with %%20 and the like for what is no letter, digit or .-_~ in a value", name, why))
			}
		}
	}
	return problems
}

// notToken are the printable characters that the name of a header cannot have (RFC 9110, section 5.6.2).
const notToken = `"(),/:;<=>?@[\]{}`

// badPairs says what is wrong with name=value,name=value (W3C Baggage, section 3.3.1, as OpenTelemetry reads it), where headers are meant or others.
func badPairs(text string, headers bool) string {
	if strings.TrimSpace(text) == "" {
		return ""
	}
	n := 0
	for pair := range strings.SplitSeq(text, ",") {
		n++
		name, value, found := strings.Cut(pair, "=")
		name = strings.TrimSpace(name)
		_, err := url.PathUnescape(value)
		switch {
		case !found:
			return fmt.Sprintf("number %d has no equals sign", n)
		case name == "" || headers && strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r >= 0x7f || strings.ContainsRune(notToken, r) }):
			return fmt.Sprintf("number %d has no name", n)
		case err != nil:
			return fmt.Sprintf("the value of number %d has a %% that is no escape", n)
		case headers && strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }):
			return fmt.Sprintf("the value of number %d has a line break, or another control character", n)
		}
	}
	return ""
}
