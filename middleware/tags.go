package middleware

import (
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/cacheguard-go/cacheguard/cacheguard"
	"github.com/cacheguard-go/cacheguard/cacheguard/store"
)

// An answer's tags name what it is made of (Options.TagHeaders). Each name has
// two marks: forgetting the hard one invalidates what bears the name, forgetting
// the soft one makes it stale. What is kept remembers both as they were when its
// run began.

// everything is the tag that every answer bears.
const everything = "*"

// maxTags bounds the tags of one answer: each has to be looked up on a hit.
const maxTags = 64

// errTags: an answer has more tags than can be looked up, or one of them may
// have been invalidated while it was made.
var errTags = errors.New("middleware: tags")

func hardMark(tag string) string { return "h" + tag }
func softMark(tag string) string { return "s" + tag }

// epochMark is forgotten by every invalidation of tags, before the tags' own. The
// token of its entry is the epoch: if it is the same after a run as before, no tag
// was invalidated while that went on. It is always read from the store: a near copy
// of it next to a tag's new mark would let an old answer pass for a new one.
const epochMark = "e"

// InvalidateTags removes every answer that bears one of the tags, of whatever
// URL and variant, in time that does not depend on their number. It reaches
// answers that are being made. See [Cache.Invalidate] for what holds when it
// has returned.
func (c *Cache) InvalidateTags(ctx context.Context, tags ...string) error {
	return c.forgetTags(ctx, hardMark, tags)
}

// ExpireTags makes every answer that bears one of the tags stale; see
// [Cache.Expire].
func (c *Cache) ExpireTags(ctx context.Context, tags ...string) error {
	return c.forgetTags(ctx, softMark, tags)
}

// InvalidateAll removes everything, as if it were a tag of every answer; it needs
// Options.TagHeaders too.
func (c *Cache) InvalidateAll(ctx context.Context) error {
	return c.forgetTags(ctx, hardMark, []string{everything})
}

// ExpireAll makes everything stale; see [Cache.InvalidateAll] and
// [Cache.Expire].
func (c *Cache) ExpireAll(ctx context.Context) error {
	return c.forgetTags(ctx, softMark, []string{everything})
}

// errNoTags says that nothing can be told by tags.
var errNoTags = errors.New("middleware: answers have no tags; set Options.TagHeaders, such as to \"Surrogate-Key\"")

func (c *Cache) forgetTags(ctx context.Context, mark func(string) string, tags []string) error {
	if len(c.opts.TagHeaders) == 0 {
		return errNoTags
	}
	names := make([]string, len(tags))
	for i, tag := range tags {
		names[i] = mark(tag)
	}
	// The epoch first: whoever finds a new mark finds a new epoch too.
	return errors.Join(c.marks.epochs.Invalidate(ctx, epochMark), c.marks.forget(ctx, names...))
}

// tagNames reads the tags of an answer: separated by spaces or commas, in
// quotes or not (Surrogate-Key, Cache-Tag, Cache-Groups).
func (o *Options) tagNames(h http.Header) []string {
	if len(o.TagHeaders) == 0 {
		return nil
	}
	names := []string{everything}
	for _, field := range o.TagHeaders {
		for _, line := range h[field] {
			for name := range strings.FieldsFuncSeq(line, func(r rune) bool { return r == ' ' || r == ',' || r == '\t' }) {
				if name = strings.Trim(name, `"`); name != "" {
					names = append(names, name)
				}
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// errMarksAway: the store that knows the marks is out of reach.
var errMarksAway = errors.New("middleware: marks are out of reach")

// tagged returns the tags of an answer whose run began in an epoch, each with its
// marks from then. If the epoch has changed, a mark that was made in a later one may
// be there because its tag was invalidated since: then the answer cannot be shared.
func (m *marks) tagged(ctx context.Context, names []string, epoch store.Token) ([]tag, error) {
	if len(names) > maxTags {
		return nil, errTags
	}
	tags := make([]tag, len(names))
	later := false
	read := func(name string) (string, error) {
		e, err := m.guard.GetEntry(ctx, name, m.newTagMark)
		if err == nil && e.Token == 0 {
			err = errMarksAway
		}
		later = later || !madeBy(e.Value, epoch)
		return e.Value, err
	}
	for i, name := range names {
		hard, err := read(hardMark(name))
		if err != nil {
			return nil, err
		}
		soft, err := read(softMark(name))
		if err != nil {
			return nil, err
		}
		tags[i] = tag{name: name, hard: hard, soft: soft}
	}
	now, err := m.epoch(ctx)
	if err == nil && later && now != epoch {
		err = errTags
	}
	return tags, err
}

// epoch returns the present epoch.
func (m *marks) epoch(ctx context.Context) (store.Token, error) {
	e, err := m.epochs.GetEntry(ctx, epochMark, newMark)
	if err == nil && e.Token == 0 {
		err = errMarksAway
	}
	return e.Token, err
}

// newTagMark makes the mark of a tag, which says in what epoch it was made. Its age
// would not do: two clocks can differ by as much as a request was on its way, and the
// mark that follows an invalidation may be made a moment after a run has begun.
func (m *marks) newTagMark(ctx context.Context, _ string) (string, error) {
	return m.maker(ctx)(), nil
}

// maker makes marks of the present epoch. It is read after the lease for the marks
// was granted, and an invalidation of their tags fences that off: a mark that names
// an epoch was made before any invalidation that ended the epoch. While nobody knows
// the epoch, a mark names none.
func (m *marks) maker(ctx context.Context) (mark func() string) {
	epoch, err := m.epoch(ctx)
	if err != nil {
		return rand.Text
	}
	made := strconv.FormatInt(int64(epoch), 36) + "."
	return func() string { return made + rand.Text() }
}

// madeBy tells whether a tag's mark was certainly made in an epoch or before.
func madeBy(mark string, epoch store.Token) bool {
	made, _, ok := strings.Cut(mark, ".")
	n, err := strconv.ParseInt(made, 36, 64)
	return ok && err == nil && store.Token(n) <= epoch
}

// standing tells whether the tags' marks are still what they were: hard if the
// answer may be used at all, soft if it is not stale.
func (m *marks) standing(ctx context.Context, tags []tag) (hard, soft bool) {
	names := make([]string, 0, 2*len(tags))
	for _, t := range tags {
		names = append(names, hardMark(t.name), softMark(t.name))
	}
	now, err := m.guard.GetMany(ctx, names, func(_ context.Context, names []string) (map[string]string, error) {
		made, fresh := m.maker(ctx), make(map[string]string, len(names))
		for _, name := range names {
			fresh[name] = made()
		}
		return fresh, nil
	})
	if err != nil {
		return false, false
	}
	hard, soft = true, true
	for _, t := range tags {
		hard = hard && now[hardMark(t.name)] == t.hard
		soft = soft && now[softMark(t.name)] == t.soft
	}
	return hard, soft
}

// tag gives what is kept of an answer its tags. An answer whose tags may have
// been invalidated meanwhile is not for others. While nobody can tell, it is for
// those who were there before it was asked for.
func (f *fill) tag(ctx context.Context, p *response) error {
	if f.away {
		p.keepHere()
	}
	names := f.c.opts.tagNames(p.header)
	if names == nil || p.handOver() {
		return nil
	}
	if f.epoch == 0 {
		p.keepHere()
		return nil
	}
	tags, err := f.c.marks.tagged(ctx, names, f.epoch)
	switch {
	case errors.Is(err, errMarksAway):
		p.keepHere()
	case err != nil:
		return &unsharedError{reason: "tags"}
	default:
		p.tags = tags
	}
	return nil
}

// tagsStand applies what has become of an answer's tags to its standing. It
// reports false if the answer is not to be used at all.
func (x *exchange) tagsStand(e cacheguard.Entry[*response], s *standing) bool {
	if len(e.Value.tags) == 0 {
		return true
	}
	hard, soft := x.c.marks.standing(x.r.Context(), e.Value.tags)
	s.fresh = s.fresh && soft
	return hard
}
