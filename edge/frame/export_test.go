package frame

// For the tests.
var (
	ValidJSON = validJSON
	Encode    = encode
	GapReason = gapReason
	Unquote   = unquote
)

// Text is a JSON string as frames hold it.
func Text(s string) string { return string(appendString(nil, s)) }

// Depths of nesting.
const (
	MaxDepth      = maxDepth
	MaxValueDepth = maxValueDepth
)
