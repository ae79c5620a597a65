package main

import (
	"context"
	"net"
	"net/http"
	"time"

	vegeta "github.com/tsenart/vegeta/v12/lib"
)

// openLoop asks at a rate, whatever the answers do: each request is sent when it
// is due, so that a service that stalls is not asked less often meanwhile, and
// its latency counts from then, so that one that was sent late waited longer,
// not shorter. (A closed loop, whose callers wait for their answers, would see a
// stall as a few slow answers among many: coordinated omission.)
type openLoop struct {
	rate    vegeta.Rate
	span    time.Duration // for which requests are sent
	client  *http.Client
	maxBody int64 // bytes of an answer that are kept; negative: all
}

// reply is what came of one request.
type reply struct {
	*vegeta.Result
	due     time.Duration // since the begin
	late    time.Duration // sent so much after that
	latency time.Duration // since it was due
}

// perSecond is a rate of whole requests a second.
func perSecond(n int) vegeta.Rate { return vegeta.Rate{Freq: n, Per: time.Second} }

// lateAfter is how late a request may be sent before it counts as late.
const lateAfter = 10 * time.Millisecond

// newOpenClient returns a client with a connection for each of maxCallers, and
// what ends them. They end with ctx, too: who is interrupted does not wait for the
// answers of a service that has none.
func newOpenClient(ctx context.Context) (client *http.Client, end func()) {
	dialer := net.Dialer{Timeout: dialLimit}
	transport := &http.Transport{
		MaxIdleConns: maxCallers, MaxIdleConnsPerHost: maxCallers,
		DialContext: func(dialing context.Context, network, addr string) (net.Conn, error) {
			conn, err := dialer.DialContext(dialing, network, addr)
			if err == nil {
				context.AfterFunc(ctx, func() { conn.Close() })
			}
			return conn, err
		},
	}
	return &http.Client{
		Transport: transport, Timeout: callLimit,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, transport.CloseIdleConnections
}

// requests is how many are due in the span.
func (o openLoop) requests() uint64 {
	return uint64(time.Duration(o.rate.Freq) * o.span / o.rate.Per)
}

// due is when a request is, since the begin: the first at once.
func (o openLoop) due(request uint64) time.Duration {
	return time.Duration(request) * o.rate.Per / time.Duration(o.rate.Freq)
}

// Pace is how long to wait for the next request, given those sent: with Rate it
// makes a vegeta.Pacer. It ends with their number and not with the time, which
// would drop those that are late by then.
func (o openLoop) Pace(elapsed time.Duration, sent uint64) (wait time.Duration, stop bool) {
	return o.due(sent) - elapsed, sent >= o.requests()
}

// Rate is how many requests a second are sent.
func (o openLoop) Rate(elapsed time.Duration) float64 { return o.rate.Rate(elapsed) }

// run sends what next says, and calls each for every reply, one at a time. It
// returns the rate at which requests were sent, 0 if there were too few to tell.
func (o openLoop) run(ctx context.Context, next vegeta.Targeter, each func(reply)) (sentPerSecond float64, err error) {
	attacker := vegeta.NewAttacker(vegeta.Client(o.client), vegeta.MaxWorkers(maxCallers), vegeta.MaxBody(o.maxBody))
	stop := context.AfterFunc(ctx, func() { attacker.Stop() })
	defer stop()
	begin := time.Now()
	sent, last := 0, begin
	for result := range attacker.Attack(next, o, 0, "") {
		due := o.due(result.Seq)
		late := max(0, result.Timestamp.Sub(begin)-due)
		if result.Timestamp.After(last) {
			last = result.Timestamp
		}
		sent++
		if ctx.Err() != nil && result.Code == 0 {
			continue // that there is no answer is our doing
		}
		each(reply{result, due, late, late + result.Latency})
	}
	if sent > 1 {
		sentPerSecond = hundredth(float64(sent-1) / last.Sub(begin).Seconds())
	}
	return sentPerSecond, ctx.Err()
}
