package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReplicasThatShareASecretShareLaneNames: and the pages say so.
func TestReplicasThatShareASecretShareLaneNames(t *testing.T) {
	shared := `fanout: {secret: "` + strings.Repeat("s", 32) + `"}`
	lane := func(text string) string { return newTestApp(t, text).server.LaneOf("team-a") }
	if one, other := lane(shared), lane(shared); one != other || !strings.HasPrefix(one, "lane_") {
		t.Errorf("replicas that share a secret have the lanes %s and %s for one tenant, want the same", one, other)
	}
	if one, other := lane("{}"), lane("{}"); one == other {
		t.Errorf("processes without a secret have the same lane %s for a tenant, want one each", one)
	}
	for _, page := range []string{"fanout.md", "security.md"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "docs", page))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(strings.Join(strings.Fields(string(text)), " "), "Their lane names are the same then") {
			t.Errorf("%s does not say that replicas with a shared secret have the same lane names", page)
		}
	}
}
