// The standard IPC stream reader of Arrow C++ over messages with a whole region as the body. A
// Python test loads it beside pyarrow's own libarrow.
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "arrow/api.h"
#include "arrow/buffer.h"
#include "arrow/c/bridge.h"
#include "arrow/ipc/api.h"

namespace {

std::shared_ptr<arrow::Buffer> Bytes(const uint8_t* data, int64_t size) {
  return std::make_shared<arrow::Buffer>(data, size);
}

// Returns the messages in order, each with the region as its body.
class Messages final : public arrow::ipc::MessageReader {
 public:
  Messages(std::vector<std::string> messages, std::shared_ptr<arrow::Buffer> region)
      : messages_(std::move(messages)), region_(std::move(region)) {}

  arrow::Result<std::unique_ptr<arrow::ipc::Message>> ReadNextMessage() override {
    if (next_ == messages_.size()) return nullptr;
    // The first message is the schema, which has no body.
    auto body = next_ == 0 ? nullptr : region_;
    return arrow::ipc::ReadMessage(arrow::Buffer::FromString(messages_[next_++]), body);
  }

 private:
  std::vector<std::string> messages_;
  std::shared_ptr<arrow::Buffer> region_;
  size_t next_ = 0;
};

// Counts the buffers of an array inside `region`, and those outside.
void Count(const arrow::ArrayData& data, const arrow::Buffer& region, int64_t* inside,
           int64_t* outside) {
  for (const auto& buffer : data.buffers) {
    if (buffer == nullptr || buffer->size() == 0) continue;
    const bool is_inside = buffer->data() >= region.data() &&
                           buffer->data() + buffer->size() <= region.data() + region.size();
    ++*(is_inside ? inside : outside);
  }
  for (const auto& child : data.child_data) Count(*child, region, inside, outside);
  if (data.dictionary != nullptr) Count(*data.dictionary, region, inside, outside);
}

}  // namespace

extern "C" {

// Reads `count` messages, checks the resulting table, counts its buffers, and exports it. Returns
// "" or an error message, valid until the next call.
const char* read_messages(const uint8_t* const* messages, const int64_t* sizes, int64_t count,
                          const uint8_t* base, int64_t length, int64_t* inside,
                          int64_t* outside, ArrowArrayStream* out) {
  static std::string text;
  auto status = [&]() -> arrow::Status {
    auto region = Bytes(base, length);
    std::vector<std::string> copies;
    for (int64_t i = 0; i < count; ++i) {
      copies.emplace_back(reinterpret_cast<const char*>(messages[i]),
                          static_cast<size_t>(sizes[i]));
    }
    ARROW_ASSIGN_OR_RAISE(auto reader,
                          arrow::ipc::RecordBatchStreamReader::Open(
                              std::make_unique<Messages>(std::move(copies), region)));
    ARROW_ASSIGN_OR_RAISE(auto table, reader->ToTable());
    ARROW_RETURN_NOT_OK(table->ValidateFull());
    for (const auto& column : table->columns()) {
      for (const auto& chunk : column->chunks()) Count(*chunk->data(), *region, inside, outside);
    }
    return arrow::ExportRecordBatchReader(std::make_shared<arrow::TableBatchReader>(table), out);
  }();
  text = status.ok() ? "" : status.ToString();
  return text.c_str();
}

}  // extern "C"
