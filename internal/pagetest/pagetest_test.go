package pagetest

import (
	"reflect"
	"testing"
)

func TestParse(t *testing.T) {
	commands, files := parse("# Top\n\ntext\n\n    make build   # comment\n    sh -c 'a # b'\n\n    curl -s \\\n        http://x\n\n## Part\n\n- item\n    that goes on\n\n" +
		"```sh\nscp a b\n```\n\n```yaml\n# a.yaml\na: 1\n```\n```\n    drawing\n```\n")
	if want := []Command{
		{"Top", 5, "make build"}, {"Top", 6, "sh -c 'a # b'"}, {"Top", 8, "curl -s http://x"}, {"Part", 17, "scp a b"},
	}; !reflect.DeepEqual(commands, want) {
		t.Errorf("the commands are %+v", commands)
	}
	if want := []File{{21, "yaml", "# a.yaml\na: 1\n"}, {25, "", "    drawing\n"}}; !reflect.DeepEqual(files, want) {
		t.Errorf("the files are %+v", files)
	}
}
