package ops

// Bounds that tests go beyond.
const (
	WriteTimeout = writeTimeout
	MaxScrapes   = maxScrapes
)
