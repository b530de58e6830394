package protocol

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"gvisor.dev/gvisor/pkg/sentry/control"
	"gvisor.dev/gvisor/pkg/sentry/kernel/auth"
	"gvisor.dev/gvisor/pkg/sentry/seccheck"
	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"
	"gvisor.dev/gvisor/pkg/state/statefile"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/specutils"
)

// TestNames compares what is a name or a number with gVisor.
func TestNames(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		MethodCheckpoint: boot.ContMgrCheckpoint, MethodCreateTraceSession: boot.ContMgrCreateTraceSession, MethodExecuteAsync: boot.ContMgrExecuteAsync,
		MethodPause: boot.ContMgrPause, MethodProcesses: boot.ContMgrProcesses, MethodRead: boot.FsRead, MethodResume: boot.ContMgrResume,
		MethodSignal: boot.ContMgrSignal, MethodTarRootfs: boot.FsTarRootfsUpperLayer, MethodWaitPID: boot.ContMgrWaitPID,
		MethodWaitRestore: boot.ContMgrWaitRestore,
		StateFile:         checkpointfiles.StateFileName, PagesMetadataFile: checkpointfiles.PagesMetadataFileName, PagesFile: checkpointfiles.PagesFileName,
		RootfsTarAnnotation: specutils.AnnotationRootfsUpperTar, TraceSessionName: seccheck.DefaultSessionName,
	} {
		if got != want {
			t.Errorf("%q is %q in gVisor", got, want)
		}
	}
	if got, want := map[string]string{CompressionKey: CompressionNone}, statefile.CompressionLevelNone.ToMetadata(); !maps.Equal(got, want) {
		t.Errorf("the metadata is %v, in gVisor %v", got, want)
	}
	for got, want := range map[SignalMode]boot.SignalDeliveryMode{
		SignalProcess: boot.DeliverToProcess, SignalForegroundGroup: boot.DeliverToForegroundProcessGroup,
	} {
		if int(got) != int(want) {
			t.Errorf("the mode %v is %d, not %d", want, want, got)
		}
	}
}

// TestTypes compares the types with gVisor's. Fields of gVisor's that the daemon does not use are listed, so that a new one is noticed: the
// daemon may have to set it.
func TestTypes(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		ours, gvisors any
		unused        string
	}{
		{
			new(ExecArgs), new(control.ExecArgs),
			"CgroupNamespace ExtraKGIDs FDTable InitialCgroupV2 Limits MountNamespace NoNewPrivileges PIDNamespace SeccompProgram SupportTTYs filename",
		},
		{new(TaskCapabilities), new(auth.TaskCapabilities), "AmbientCaps InheritableCaps"},
		{new(SaveOpts), new(control.SaveOpts), "ExecOpts cuda_checkpoint_path cuda_checkpoint_sequential key use_checkpoint_gofer"},
		{new(TarOpts), new(control.TarRootfsUpperLayerOpts), ""},
		{new(ReadOpts), new(control.ReadOpts), "offset"},
		{new(Process), new(control.Process), "c pgid stime tty"},
		{new(WaitPIDArgs), new(boot.WaitPIDArgs), ""},
		{new(SignalArgs), new(boot.SignalArgs), ""},
		{new(TraceSessionArgs), new(boot.CreateTraceSessionArgs), ""},
		{new(TraceSession), new(seccheck.SessionConfig), "ignore_missing options points"},
		{new(Sink), new(seccheck.SinkConfig), "ignore_setup_error status"},
	} {
		name := reflect.TypeOf(c.gvisors).Elem().String()
		ours, gvisors := jsonNames(c.ours), jsonNames(c.gvisors)
		unused := slices.DeleteFunc(slices.Clone(gvisors), func(n string) bool { return slices.Contains(ours, n) })
		if got := strings.Join(unused, " "); got != c.unused {
			t.Errorf("of %s the daemon does not use %q, not %q", name, got, c.unused)
		}
		// What is sent arrives, under exactly these names, and with the same form if it is sent back.
		fill(reflect.ValueOf(c.ours).Elem())
		sent, err := json.Marshal(c.ours)
		if err != nil {
			t.Fatal(err)
		}
		strict := json.NewDecoder(bytes.NewReader(sent))
		strict.DisallowUnknownFields()
		if err := strict.Decode(c.gvisors); err != nil {
			t.Errorf("%s does not decode: %v", name, err)
			continue
		}
		returned, err := json.Marshal(c.gvisors)
		if err != nil {
			t.Fatal(err)
		}
		again := reflect.New(reflect.TypeOf(c.ours).Elem()).Interface()
		if err := json.Unmarshal(returned, again); err != nil || !reflect.DeepEqual(c.ours, again) {
			t.Errorf("%s: %s came back as %s: %v", name, sent, returned, err)
		}
		exact := map[string]json.RawMessage{} // Decoding ignores the case of names.
		if err := json.Unmarshal(returned, &exact); err != nil {
			t.Fatal(err)
		}
		for _, n := range ours {
			if _, ok := exact[n]; !ok {
				t.Errorf("%s has no %s", name, n)
			}
		}
	}
}

// jsonNames returns the names of a struct's fields in JSON, sorted.
func jsonNames(structure any) (names []string) {
	for _, f := range reflect.VisibleFields(reflect.TypeOf(structure).Elem()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || f.Anonymous || name == "-" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// fill sets every field of a value to a value that is not the zero value.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0))
		fill(v.Index(1))
	case reflect.Map:
		key := reflect.New(v.Type().Key()).Elem()
		fill(key)
		value := reflect.ValueOf("value")
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString("text of " + v.Type().String())
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1<<31 - 1)
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(1<<(8*v.Type().Size()) - 1)
	default:
		panic("a field has the type " + v.Type().String())
	}
}
