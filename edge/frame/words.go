package frame

import (
	"maps"
	"slices"
	"strings"

	"tailrace.dev/tailrace/services/hub"
)

// The words of the protocol's closed choices.

func starts() map[string]hub.StartKind {
	return map[string]hub.StartKind{"latest": hub.Latest, "earliest": hub.Earliest}
}

func missings() map[string]hub.Missing {
	return map[string]hub.Missing{"earliest": hub.MissingEarliest, "latest": hub.MissingLatest, "skip": hub.MissingSkip}
}

func outOfRanges() map[string]hub.OutOfRange {
	return map[string]hub.OutOfRange{"earliest": hub.OutOfRangeEarliest, "latest": hub.OutOfRangeLatest, "fail": hub.OutOfRangeFail}
}

func slowPolicies() map[string]hub.SlowPolicy {
	return map[string]hub.SlowPolicy{
		"catchup": hub.SlowCatchUp, "skip": hub.SlowSkip, "conflate": hub.SlowConflate, "fail": hub.SlowFail,
	}
}

func forms() map[string]As {
	return map[string]As{"auto": AsAuto, "json": AsJSON, "text": AsText, "base64": AsBase64}
}

func sortedWords[T any](words map[string]T) string {
	return strings.Join(slices.Sorted(maps.Keys(words)), ", ")
}
