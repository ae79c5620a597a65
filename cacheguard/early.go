package cacheguard

import (
	"math"
	"time"
)

// early decides whether a hit that is still fresh for left rebuilds now. It is
// XFetch (see Options.EarlyRefresh): rebuild if -cost × beta × ln(draw) reaches
// past the end of the fresh life, for a draw from [0, 1). The dearer the load
// and the nearer the end, the likelier; one cost before the end it is 37 % per
// look at beta 1.
func early(beta float64, cost, left time.Duration, draw float64) bool {
	if beta < 0 || cost <= 0 || left <= 0 {
		return false
	}
	return float64(cost)*beta*-math.Log(1-draw) >= float64(left)
}
