package redistest

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// Cluster is a Redis Cluster of masters, each with an equal share of the slots.
type Cluster struct{ Nodes []*Server }

// StartClusterIn starts a cluster of n masters in dir, which must exist, and
// waits until every one of them serves all slots. The context bounds the start.
func StartClusterIn(ctx context.Context, dir string, n int) (*Cluster, error) {
	c := &Cluster{}
	for i := range n {
		nodeDir, err := makeDir(dir, strconv.Itoa(i))
		if err != nil {
			c.Stop()
			return nil, err
		}
		node, err := StartServer(ctx, nodeDir, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000")
		if err != nil {
			c.Stop()
			return nil, err
		}
		c.Nodes = append(c.Nodes, node)
	}
	if err := c.join(ctx); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

// slotsPerCommand keeps CLUSTER ADDSLOTS to a size that every version takes.
const (
	slots           = 16384
	slotsPerCommand = 1024
)

func (c *Cluster) join(ctx context.Context) error {
	for i, node := range c.Nodes {
		if err := node.expect("CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1)); err != nil {
			return err
		}
		first, end := i*slots/len(c.Nodes), (i+1)*slots/len(c.Nodes)
		for from := first; from < end; from += slotsPerCommand {
			words := []string{"CLUSTER", "ADDSLOTS"}
			for slot := from; slot < min(from+slotsPerCommand, end); slot++ {
				words = append(words, strconv.Itoa(slot))
			}
			if err := node.expect(words...); err != nil {
				return err
			}
		}
		if i > 0 {
			host, port, err := net.SplitHostPort(c.Nodes[0].Addr)
			if err != nil {
				return err
			}
			if err := node.expect("CLUSTER", "MEET", host, port); err != nil {
				return err
			}
		}
	}
	return c.wait(ctx)
}

// wait returns when every node knows every other and serves all slots.
func (c *Cluster) wait(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		ready := 0
		for _, node := range c.Nodes {
			info, err := node.ask("CLUSTER", "INFO")
			if err == nil && strings.Contains(info, "cluster_state:ok") &&
				strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d\r\n", len(c.Nodes))) {
				ready++
			}
		}
		if ready == len(c.Nodes) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("redistest: the cluster does not come up: %w", context.Cause(ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// Addrs are the addresses of all nodes.
func (c *Cluster) Addrs() []string {
	var addrs []string
	for _, node := range c.Nodes {
		addrs = append(addrs, node.Addr)
	}
	return addrs
}

// Stop ends all nodes.
func (c *Cluster) Stop() {
	for _, node := range c.Nodes {
		node.Stop()
	}
}
