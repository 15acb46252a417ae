// Judges the parts of a recorded history by porcupine: the files that the tests of
// tests/daemon/tests/history leave in FARROW_HISTORY_FOLDER, one part a line. The models are
// those of model.rs there, written once more, so that a mistake in one of them is seen.
//
// It ends with 0 when all parts are linearizable, with 1 when one is not or cannot be decided in
// time, and says how many were judged.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"sort"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// A part takes milliseconds; one that takes this long will not be decided.
const patience = 60 * time.Second

// Parts that are judged at a time: each takes memory for all its operations, squared.
const workers = 2

// A line of a part, with names and lists of a few hundred bytes for each operation.
const lineBytesMax = 256 << 20

type operation struct {
	BeginNs int64           `json:"begin_ns"`
	EndNs   int64           `json:"end_ns"`
	Op      json.RawMessage `json:"op"`
}

type part struct {
	Part       string      `json:"part"`
	Kind       string      `json:"kind"`
	Operations []operation `json:"operations"`
}

type fields struct {
	Version    uint64   `json:"version"`
	Versions   []uint64 `json:"versions"`
	IsInFlight bool     `json:"is_in_flight"`
	Order      int      `json:"order"`
	Set        uint64   `json:"set"`
	Clear      uint64   `json:"clear"`
	Mask       uint64   `json:"mask"`
	Flags      uint64   `json:"flags"`
}

// What was done, and with what: "NotFound", or {"Put": {"version": 5}}.
type input struct {
	what string
	fields
}

func inputOf(raw json.RawMessage) (input, error) {
	var word string
	if json.Unmarshal(raw, &word) == nil {
		return input{what: word}, nil
	}
	var one map[string]fields
	if err := json.Unmarshal(raw, &one); err != nil || len(one) != 1 {
		return input{}, fmt.Errorf("no operation: %s (%v)", raw, err)
	}
	for what, fields := range one {
		return input{what, fields}, nil
	}
	return input{}, nil
}

// The version of the object that has the name, 0 for none; how many deletes of which nothing is
// known took place; and whether all that has an end is over.
type nameState struct {
	version    uint64
	mayDeletes int
	isClosed   bool
}

func stepName(state nameState, in input) (bool, nameState) {
	isThere := state.version != 0
	next := state
	if state.isClosed {
		switch in.what {
		case "MayPut", "MayReplace", "MayDelete", "MayDeleteById":
			return true, state
		}
		return false, state
	}
	switch in.what {
	case "Put", "MayPut":
		next.version = in.Version
		return !isThere, next
	case "Replaced", "MayReplace":
		next.version = in.Version
		return true, next
	case "Taken":
		return isThere || in.IsInFlight, state
	case "Got":
		return state.version == in.Version, state
	case "NotFound":
		return !isThere, state
	case "IsThere":
		return isThere || in.IsInFlight, state
	case "IsNot":
		return state.version != in.Version, state
	case "NotListed":
		for _, version := range in.Versions {
			if state.version == version {
				return false, state
			}
		}
		return true, state
	case "Deleted":
		next.version = 0
		return isThere || in.IsInFlight, next
	case "Unmade":
		if state.version == in.Version {
			next.version = 0
		}
		return true, next
	case "MayDelete":
		next.version = 0
		next.mayDeletes++
		return isThere && in.Order == state.mayDeletes, next
	case "DeletedById", "MayDeleteById":
		next.version = 0
		return state.version == in.Version, next
	case "Close":
		next.isClosed = true
		return true, next
	}
	panic("unknown operation " + in.what)
}

func nameModel(isEvicted bool) porcupine.Model {
	return porcupine.Model{
		Init: func() interface{} { return nameState{} },
		Step: func(state, in, _ interface{}) (bool, interface{}) {
			before := state.(nameState)
			isValid, next := stepName(before, in.(input))
			if !isValid && isEvicted {
				before.version = 0
				isValid, next = stepName(before, in.(input))
			}
			return isValid, next
		},
	}
}

// All that flags may be, from the lowest.
type flagsState []uint64

func stepFlags(state flagsState, in input) flagsState {
	values := map[uint64]bool{}
	for _, before := range state {
		after := before&^in.Clear | in.Set
		switch in.what {
		case "Set":
			values[after] = after == in.Flags
		case "MaySet":
			values[after] = true
		case "Met":
			values[before] = before == in.Flags && before&in.Mask == in.Mask
		case "NotMet":
			values[before] = before&in.Mask != in.Mask
		case "MayLose":
			values[before], values[0] = true, true
		default:
			panic("unknown operation " + in.what)
		}
	}
	var next flagsState
	for value, isPossible := range values {
		if isPossible {
			next = append(next, value)
		}
	}
	sort.Slice(next, func(i, j int) bool { return next[i] < next[j] })
	return next
}

func flagsModel() porcupine.Model {
	return porcupine.Model{
		Init: func() interface{} { return flagsState{0} },
		Step: func(state, in, _ interface{}) (bool, interface{}) {
			next := stepFlags(state.(flagsState), in.(input))
			return len(next) > 0, next
		},
		Equal: func(one, other interface{}) bool {
			return reflect.DeepEqual(one, other)
		},
	}
}

func judge(one part) (porcupine.CheckResult, error) {
	model := nameModel(one.Kind == "evicted names")
	if one.Kind == "flags" {
		model = flagsModel()
	}
	operations := make([]porcupine.Operation, len(one.Operations))
	for number, op := range one.Operations {
		in, err := inputOf(op.Op)
		if err != nil {
			return porcupine.Unknown, err
		}
		operations[number] = porcupine.Operation{
			ClientId: number, Input: in, Call: op.BeginNs, Return: op.EndNs,
		}
	}
	return porcupine.CheckOperationsTimeout(model, operations, patience), nil
}

type count struct {
	sync.Mutex
	parts, operations, longest, illegal, unknown int
}

func (count *count) add(one part, result porcupine.CheckResult) {
	count.Lock()
	defer count.Unlock()
	count.parts++
	count.operations += len(one.Operations)
	if len(one.Operations) > count.longest {
		count.longest = len(one.Operations)
	}
	switch result {
	case porcupine.Illegal:
		count.illegal++
		fmt.Printf("%s is not linearizable: %d operations\n", one.Part, len(one.Operations))
	case porcupine.Unknown:
		count.unknown++
		fmt.Printf("%s is undecided: %d operations\n", one.Part, len(one.Operations))
	}
}

func judgeFile(path string) (*count, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	parts := make(chan part)
	total := &count{}
	var failure error
	var running sync.WaitGroup
	for worker := 0; worker < workers; worker++ {
		running.Add(1)
		go func() {
			defer running.Done()
			for one := range parts {
				result, err := judge(one)
				if err != nil {
					total.Lock()
					failure = err
					total.Unlock()
				}
				total.add(one, result)
			}
		}()
	}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, lineBytesMax)
	for lines.Scan() {
		var one part
		if err = json.Unmarshal(lines.Bytes(), &one); err != nil {
			break
		}
		parts <- one
	}
	close(parts)
	running.Wait()
	for _, one := range []error{err, lines.Err(), failure} {
		if one != nil {
			return nil, fmt.Errorf("%s: %w", path, one)
		}
	}
	return total, nil
}

func main() {
	isRight := len(os.Args) > 1
	for _, path := range os.Args[1:] {
		begin := time.Now()
		total, err := judgeFile(path)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		fmt.Printf("%s: %d operations in %d parts, the longest of %d, judged by porcupine in %v: "+
			"%d not linearizable, %d undecided\n", path, total.operations, total.parts, total.longest,
			time.Since(begin).Round(time.Millisecond), total.illegal, total.unknown)
		isRight = isRight && total.illegal == 0 && total.unknown == 0 && total.parts > 0
	}
	if !isRight {
		os.Exit(1)
	}
}
