// Build an Arrow table in shared memory with farrow::MemoryPool; read it from another process.
//
//   g++ -std=c++20 table.cc $(pkg-config --cflags --libs farrow arrow) -o table
//   ./table write SOCKET NAME
//   ./table read SOCKET NAME
#include <cstdlib>
#include <iostream>
#include <memory>
#include <string>

#include "arrow/api.h"
#include "arrow/c/bridge.h"
#include "farrow/memory_pool.hpp"

namespace {

constexpr int64_t kRows = 1'000'000;

arrow::Status Check(FarrowStatus status) { return farrow::ToArrowStatus(status); }

arrow::Result<std::shared_ptr<arrow::Table>> Build(arrow::MemoryPool* pool) {
  arrow::Int64Builder numbers(pool);
  arrow::StringBuilder words(pool);
  for (int64_t i = 0; i < kRows; ++i) {
    ARROW_RETURN_NOT_OK(numbers.Append(i));
    ARROW_RETURN_NOT_OK(i % 7 == 0 ? words.AppendNull() : words.Append("w" + std::to_string(i)));
  }
  ARROW_ASSIGN_OR_RAISE(auto number, numbers.Finish());
  ARROW_ASSIGN_OR_RAISE(auto word, words.Finish());
  auto schema = arrow::schema({arrow::field("n", arrow::int64()), arrow::field("w", arrow::utf8())});
  return arrow::Table::Make(schema, {number, word});
}

arrow::Status Write(FarrowClient* client, const char* name) {
  ARROW_ASSIGN_OR_RAISE(auto pool, farrow::MemoryPool::Make(client));
  // The table must be destroyed before its pool.
  ARROW_ASSIGN_OR_RAISE(auto table, Build(pool.get()));
  const auto& values = table->column(0)->chunk(0)->data()->buffers[1];
  std::cout << "built in place: " << std::boolalpha << pool->Contains(values->data()) << "\n";

  ArrowArrayStream stream;
  auto reader = std::make_shared<arrow::TableBatchReader>(table);
  ARROW_RETURN_NOT_OK(arrow::ExportRecordBatchReader(std::move(reader), &stream));
  FarrowObjectId id;
  ARROW_RETURN_NOT_OK(Check(farrow_put_stream(client, FARROW_KIND_TABLE, &stream, name, &id)));
  char digits[33];
  farrow_id_to_hex(&id, digits);
  std::cout << "sealed as " << digits << "\n";
  return arrow::Status::OK();
}

arrow::Status Read(FarrowClient* client, const char* name) {
  FarrowObject* object = nullptr;
  ARROW_RETURN_NOT_OK(Check(farrow_get(client, nullptr, name, 5.0, &object)));
  ArrowArrayStream stream;
  auto status = Check(farrow_object_stream(object, &stream));
  farrow_object_release(object);  // the arrays of the stream keep the object held
  ARROW_RETURN_NOT_OK(status);
  ARROW_ASSIGN_OR_RAISE(auto reader, arrow::ImportRecordBatchReader(&stream));
  ARROW_ASSIGN_OR_RAISE(auto table, reader->ToTable());
  ARROW_RETURN_NOT_OK(table->ValidateFull());
  int64_t sum = 0;
  for (const auto& chunk : table->column(0)->chunks()) {
    const auto& numbers = static_cast<const arrow::Int64Array&>(*chunk);
    for (int64_t i = 0; i < numbers.length(); ++i) sum += numbers.Value(i);
  }
  std::cout << table->num_rows() << " rows, sum " << sum << ", nulls "
            << table->column(1)->null_count() << "\n";
  return arrow::Status::OK();
}

arrow::Status Run(const std::string& what, const char* socket, const char* name) {
  FarrowClient* client = nullptr;
  ARROW_RETURN_NOT_OK(Check(farrow_connect(socket, 10.0, &client)));
  auto status = what == "write" ? Write(client, name) : Read(client, name);
  farrow_close(client);
  return status;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::cerr << "usage: " << argv[0] << " write|read SOCKET NAME\n";
    return 2;
  }
  auto status = Run(argv[1], argv[2], argv[3]);
  if (!status.ok()) std::cerr << status.ToString() << "\n";
  return status.ok() ? EXIT_SUCCESS : EXIT_FAILURE;
}
