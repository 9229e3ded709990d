// dashboard-lint FILE... prints what Grafana's types say against dashboards: fields that they do not have, fields
// that are missing, and values that are none of those allowed. It ends with 1 where there is anything.
package main

import (
	"fmt"
	"os"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

// complaint says what is wrong with one file, and is empty where nothing is.
func complaint(file string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return err.Error()
	}
	var board dashboard.Dashboard
	// Both return a list of errors, which is there and empty where nothing is wrong.
	if err := board.UnmarshalJSONStrict(text); err != nil && err.Error() != "" {
		return err.Error()
	}
	if err := board.Validate(); err != nil {
		return err.Error()
	}
	return ""
}

func main() {
	plugins.RegisterDefaultPlugins()
	status := 0
	for _, file := range os.Args[1:] {
		if said := complaint(file); said != "" {
			fmt.Printf("%s: %s\n", file, said)
			status = 1
		}
	}
	os.Exit(status)
}
