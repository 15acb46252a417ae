// Put bytes and read them in place from Go, through the C interface of Farrow.
//
//	make install PREFIX=/usr/local
//	cd examples/go && go run . [SOCKET]
package main

/*
#cgo pkg-config: farrow
#include <stdlib.h>
#include <farrow/farrow.h>
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"
)

// A client may be used by many goroutines at once.
type client struct{ handle *C.FarrowClient }

// call runs f and returns its error. The text of an error belongs to the thread of the call, and a
// goroutine may change threads between two calls.
func call(f func() C.FarrowStatus) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if status := f(); status != C.FARROW_OK {
		return fmt.Errorf("%s (code %d)", C.GoString(C.farrow_last_error()), int(status))
	}
	return nil
}

// connect connects to the node at a socket; with "", to the node of this user, or to a private one.
func connect(socket string) (*client, error) {
	var name *C.char
	if socket != "" {
		name = C.CString(socket)
		defer C.free(unsafe.Pointer(name))
	}
	c := &client{}
	err := call(func() C.FarrowStatus { return C.farrow_connect(name, 10, &c.handle) })
	return c, err
}

func (c *client) close() { C.farrow_close(c.handle) }

// put copies data into shared memory, once, and seals it under a name.
func (c *client) put(name string, data []byte) error {
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	var first unsafe.Pointer
	if len(data) > 0 {
		first = unsafe.Pointer(&data[0])
	}
	return call(func() C.FarrowStatus {
		return C.farrow_put_bytes(c.handle, first, C.uint64_t(len(data)), text, nil)
	})
}

// get lends the bytes of an object to use, in place: they are valid until use returns, and read-only.
func (c *client) get(name string, use func([]byte)) error {
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	var object *C.FarrowObject
	if err := call(func() C.FarrowStatus {
		return C.farrow_get(c.handle, nil, text, 1, &object)
	}); err != nil {
		return err
	}
	defer C.farrow_object_release(object)
	var data unsafe.Pointer
	var size C.uint64_t
	if err := call(func() C.FarrowStatus {
		return C.farrow_object_bytes(object, &data, &size)
	}); err != nil {
		return err
	}
	use(unsafe.Slice((*byte)(data), int(size)))
	return nil
}

func (c *client) delete(name string) error {
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	return call(func() C.FarrowStatus { return C.farrow_delete(c.handle, nil, text) })
}

func run(socket string) error {
	c, err := connect(socket)
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.put("from go", []byte("hello")); err != nil {
		return err
	}
	if err := c.get("from go", func(data []byte) { fmt.Printf("from go: %s\n", data) }); err != nil {
		return err
	}
	// A second object with the same name is refused, and nothing is lost.
	fmt.Println("refused:", c.put("from go", []byte("again")))
	if err := c.delete("from go"); err != nil {
		return err
	}
	return c.put("left by go", []byte("for the next process"))
}

func main() {
	socket := ""
	if len(os.Args) > 1 {
		socket = os.Args[1]
	}
	if err := run(socket); err != nil {
		fmt.Fprintln(os.Stderr, "farrow:", err)
		os.Exit(1)
	}
}
