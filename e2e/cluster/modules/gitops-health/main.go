// Command gitops-health says what kstatus, Flux and Argo CD make of Kubernetes objects, each by its own library.
//
// It reads objects or Lists as JSON from standard input, and writes a line of JSON for each object.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	"github.com/fluxcd/pkg/apis/kustomize"
	"github.com/fluxcd/pkg/runtime/cel"
	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// Answer is what one tool says: a word of its own, and why.
type Answer struct {
	Status  string `json:"status"`
	Message string `json:"message,omitempty"`
}

// Health is what all of them say of one object.
type Health struct {
	Name    string `json:"name"`
	Kstatus Answer `json:"kstatus"`
	Flux    Answer `json:"flux"`
	Argo    Answer `json:"argo"`
}

// scriptTime is how long Argo CD lets a script run.
const scriptTime = time.Second

func main() {
	flux := flag.String("flux", "", "file with spec.healthCheckExprs, as in a Kustomization of Flux")
	argo := flag.String("argo", "", "file with the Lua of Argo CD")
	flag.Parse()
	if err := run(*flux, *argo, os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(fluxFile, argoFile string, in io.Reader, out io.Writer) error {
	evaluators, err := readChecks(fluxFile)
	if err != nil {
		return fmt.Errorf("%s: %w", fluxFile, err)
	}
	script, err := os.ReadFile(argoFile)
	if err != nil {
		return err
	}
	answers := json.NewEncoder(out)
	documents := json.NewDecoder(in)
	for {
		var document json.RawMessage
		if err := documents.Decode(&document); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		objects, err := read(document)
		if err != nil {
			return err
		}
		for i := range objects {
			object := &objects[i]
			health := Health{
				Name:    object.GetName(),
				Kstatus: askKstatus(object),
				Flux:    askFlux(object, evaluators),
				Argo:    askArgo(object, string(script)),
			}
			if err := answers.Encode(health); err != nil {
				return err
			}
		}
	}
}

// read decodes numbers as Kubernetes' clients do, as integers where they are: json.Unmarshal makes floats of them,
// in which none of the tools finds a generation.
func read(document []byte) ([]unstructured.Unstructured, error) {
	object := unstructured.Unstructured{}
	if err := object.UnmarshalJSON(document); err != nil {
		return nil, err
	}
	if !object.IsList() {
		return []unstructured.Unstructured{object}, nil
	}
	list, err := object.ToList()
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// readChecks makes an evaluator for each kind, by "apiVersion/kind".
func readChecks(file string) (map[string]*cel.StatusEvaluator, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var kustomization struct {
		Spec struct {
			HealthCheckExprs []kustomize.CustomHealthCheck `json:"healthCheckExprs"`
		} `json:"spec"`
	}
	if err := yaml.Unmarshal(text, &kustomization); err != nil {
		return nil, err
	}
	evaluators := map[string]*cel.StatusEvaluator{}
	for _, check := range kustomization.Spec.HealthCheckExprs {
		made, err := cel.NewStatusEvaluator(&check.HealthCheckExpressions)
		if err != nil {
			return nil, err
		}
		evaluators[check.APIVersion+"/"+check.Kind] = made
	}
	return evaluators, nil
}

func askKstatus(object *unstructured.Unstructured) Answer {
	found, err := status.Compute(object)
	if err != nil {
		return failure(err)
	}
	return Answer{Status: string(found.Status), Message: found.Message}
}

func askFlux(object *unstructured.Unstructured, evaluators map[string]*cel.StatusEvaluator) Answer {
	evaluator, ok := evaluators[object.GetAPIVersion()+"/"+object.GetKind()]
	if !ok {
		return failure(fmt.Errorf("no expressions for %s", object.GetKind()))
	}
	found, err := evaluator.Evaluate(context.Background(), object)
	if err != nil {
		return failure(err)
	}
	return Answer{Status: string(found.Status), Message: found.Message}
}

// askArgo does as GetResourceHealth of gitops-engine: an object that is being deleted is Progressing whatever the script
// says. The script has few libraries and little time, and returns a table.
func askArgo(object *unstructured.Unstructured, script string) Answer {
	if object.GetDeletionTimestamp() != nil {
		return Answer{Status: "Progressing", Message: "Pending deletion"}
	}
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for name, open := range map[string]lua.LGFunction{
		lua.LoadLibName: lua.OpenPackage,
		lua.BaseLibName: lua.OpenBase,
		lua.TabLibName:  lua.OpenTable,
	} {
		call := lua.P{Fn: state.NewFunction(open), NRet: 0, Protect: true}
		if err := state.CallByParam(call, lua.LString(name)); err != nil {
			return failure(err)
		}
	}
	limited, cancel := context.WithTimeout(context.Background(), scriptTime)
	defer cancel()
	state.SetContext(limited)
	state.SetGlobal("obj", asLua(state, object.Object))
	if err := state.DoString(script); err != nil {
		return failure(err)
	}
	table, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		return failure(fmt.Errorf("the script returns a %s", state.Get(-1).Type()))
	}
	return Answer{Status: lua.LVAsString(table.RawGetString("status")), Message: lua.LVAsString(table.RawGetString("message"))}
}

func asLua(state *lua.LState, value any) lua.LValue {
	switch value := value.(type) {
	case bool:
		return lua.LBool(value)
	case string:
		return lua.LString(value)
	case int64:
		return lua.LNumber(value)
	case float64:
		return lua.LNumber(value)
	case []any:
		table := state.NewTable()
		for _, item := range value {
			table.Append(asLua(state, item))
		}
		return table
	case map[string]any:
		table := state.NewTable()
		for key, item := range value {
			table.RawSetString(key, asLua(state, item))
		}
		return table
	default:
		return lua.LNil
	}
}

func failure(err error) Answer {
	return Answer{Status: "Error", Message: err.Error()}
}
