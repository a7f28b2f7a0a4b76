// What a collector that reads all at the end does: split into lines, skip those without the name, match the rest.
package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"
)

type point struct{ at, name, value string }

func main() {
	data, err := os.ReadFile(os.Args[1])
	if err != nil {
		panic(err)
	}
	names := os.Args[2:]
	pattern := regexp.MustCompile(`([\w|-]+)\s*=\s*([+-]?\d*(\.\d+)?([Ee][+-]?\d+)?)`)
	var points []point
	for _, line := range strings.Split(string(data), "\n") {
		wanted := false
		for _, name := range names {
			if strings.Contains(line, name) {
				wanted = true
				break
			}
		}
		if !wanted {
			continue
		}
		at := time.Time{}.UTC().Format(time.RFC3339)
		if first, _, _ := strings.Cut(line, " "); first != "" {
			if t, err := time.Parse(time.RFC3339Nano, first); err == nil {
				at = t.UTC().Format(time.RFC3339Nano)
			}
		}
		for _, found := range pattern.FindAllStringSubmatch(line, -1) {
			name, value := strings.TrimSpace(found[1]), strings.TrimSpace(found[2])
			for _, wanted := range names {
				if name == wanted {
					points = append(points, point{at, name, value})
				}
			}
		}
	}
	fmt.Println(len(points))
}
