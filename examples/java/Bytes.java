import com.sun.jna.Library;
import com.sun.jna.Native;
import com.sun.jna.Pointer;
import com.sun.jna.ptr.LongByReference;
import com.sun.jna.ptr.PointerByReference;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.function.Consumer;

/**
 * Put bytes and read them in place from Java, through the C interface of Farrow and JNA.
 *
 * <pre>
 *   make install PREFIX=/usr/local
 *   java -cp /usr/share/java/jna.jar examples/java/Bytes.java [SOCKET]    # apt install libjna-java
 * </pre>
 */
public final class Bytes {
    /** The functions of farrow.h that are used here. */
    public interface Farrow extends Library {
        Farrow INSTANCE = Native.load("farrow", Farrow.class);

        int farrow_connect(String socket, double timeoutSeconds, PointerByReference client);

        void farrow_close(Pointer client);

        String farrow_last_error();

        int farrow_put_bytes(Pointer client, byte[] data, long size, String name, Pointer id);

        int farrow_get(
                Pointer client, Pointer id, String name, double timeoutSeconds, PointerByReference object);

        int farrow_object_bytes(Pointer object, PointerByReference data, LongByReference size);

        void farrow_object_release(Pointer object);

        int farrow_delete(Pointer client, Pointer id, String name);
    }

    /** An error of Farrow, with its code. */
    public static final class FarrowException extends RuntimeException {
        FarrowException(int code) {
            // The text belongs to the thread of the call that failed: this one.
            super(Farrow.INSTANCE.farrow_last_error() + " (code " + code + ")");
        }
    }

    private static void check(int code) {
        if (code != 0) {
            throw new FarrowException(code);
        }
    }

    /** A connection, which may be used by many threads at once. */
    public static final class Client implements AutoCloseable {
        private final Pointer handle;

        /** Connects to the node at a socket; null: the node of this user, or a private one. */
        public Client(String socket) {
            PointerByReference handle = new PointerByReference();
            check(Farrow.INSTANCE.farrow_connect(socket, 10.0, handle));
            this.handle = handle.getValue();
        }

        /** Copies data into shared memory, once, and seals it under a name. */
        public void put(String name, byte[] data) {
            check(Farrow.INSTANCE.farrow_put_bytes(handle, data, data.length, name, null));
        }

        /** Lends the bytes of an object in place: they are valid until {@code use} returns. */
        public void get(String name, Consumer<ByteBuffer> use) {
            PointerByReference object = new PointerByReference();
            check(Farrow.INSTANCE.farrow_get(handle, null, name, 1.0, object));
            try {
                PointerByReference data = new PointerByReference();
                LongByReference size = new LongByReference();
                check(Farrow.INSTANCE.farrow_object_bytes(object.getValue(), data, size));
                // A ByteBuffer has 2 GiB at most; an empty object has no address.
                ByteBuffer bytes = size.getValue() == 0
                        ? ByteBuffer.allocate(0)
                        : data.getValue().getByteBuffer(0, size.getValue());
                use.accept(bytes.asReadOnlyBuffer());
            } finally {
                Farrow.INSTANCE.farrow_object_release(object.getValue());
            }
        }

        public void delete(String name) {
            check(Farrow.INSTANCE.farrow_delete(handle, null, name));
        }

        @Override
        public void close() {
            Farrow.INSTANCE.farrow_close(handle);
        }
    }

    public static void main(String[] arguments) {
        try (Client client = new Client(arguments.length > 0 ? arguments[0] : null)) {
            client.put("from java", "hello".getBytes(StandardCharsets.UTF_8));
            client.get(
                    "from java",
                    data -> System.out.println("from java: " + StandardCharsets.UTF_8.decode(data)));
            try {
                client.put("from java", new byte[5]);
            } catch (FarrowException refused) {
                System.out.println("refused: " + refused.getMessage());
            }
            client.delete("from java");
            client.put("left by java", "for the next process".getBytes(StandardCharsets.UTF_8));
        }
    }
}
