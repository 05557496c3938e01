#include "net/transport.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <utility>

#include "base/file.h"

namespace galley::net {
namespace {

constexpr size_t kPemBytesMax = size_t{1} << 20;

struct FreeContext {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
};
struct FreeSession {
  void operator()(SSL* session) const { SSL_free(session); }
};

// The newest reason that OpenSSL noted; its queue is emptied.
std::string tls_reason() {
  const unsigned long code = ERR_peek_last_error();  // NOLINT: OpenSSL's type
  ERR_clear_error();
  const char* text = code != 0 ? ERR_reason_error_string(code) : nullptr;
  return text != nullptr ? text : "unknown reason";
}

IoResult from_errno() {
  if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return {IoStatus::kWantRead};
  return {IoStatus::kEnded};
}

}  // namespace

struct TlsContext::State {
  std::unique_ptr<SSL_CTX, FreeContext> context;
};

struct Transport::Tls {
  std::unique_ptr<SSL, FreeSession> session;

  IoResult outcome(int returned) const {
    if (returned > 0) return {IoStatus::kDone, static_cast<size_t>(returned)};
    switch (SSL_get_error(session.get(), returned)) {
      case SSL_ERROR_WANT_READ:
        return {IoStatus::kWantRead};
      case SSL_ERROR_WANT_WRITE:
        return {IoStatus::kWantWrite};
      default:
        ERR_clear_error();
        return {IoStatus::kEnded};
    }
  }
};

TlsContext::TlsContext(std::unique_ptr<State> state) : state_(std::move(state)) {}
TlsContext::~TlsContext() = default;

Result<std::shared_ptr<TlsContext>> TlsContext::load(const std::string& certificate_file,
                                                     const std::string& key_file) {
  // OpenSSL would call a missing file no PEM.
  for (const std::string& file : {certificate_file, key_file}) {
    TRY(read_file(file, kPemBytesMax));
  }
  auto state = std::make_unique<State>();
  state->context.reset(SSL_CTX_new(TLS_server_method()));
  SSL_CTX* context = state->context.get();
  if (context == nullptr) return Error{ErrorCode::kIo, "TLS cannot start: " + tls_reason()};
  SSL_CTX_set_min_proto_version(context, TLS1_2_VERSION);
  // Idle connections then hold no record buffers; the rest lets a write be tried again with
  // what is left of a growing buffer.
  SSL_CTX_set_mode(context, SSL_MODE_RELEASE_BUFFERS | SSL_MODE_ENABLE_PARTIAL_WRITE |
                                SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
  SSL_CTX_set_options(context, SSL_OP_NO_RENEGOTIATION);
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  if (SSL_CTX_use_certificate_chain_file(context, certificate_file.c_str()) != 1) {
    return Error{ErrorCode::kInvalid,
                 certificate_file + ": not a PEM certificate chain: " + tls_reason()};
  }
  if (SSL_CTX_use_PrivateKey_file(context, key_file.c_str(), SSL_FILETYPE_PEM) != 1) {
    return Error{ErrorCode::kInvalid, key_file + ": not a PEM private key: " + tls_reason()};
  }
  if (SSL_CTX_check_private_key(context) != 1) {
    return Error{ErrorCode::kInvalid,
                 key_file + ": not the key of the certificate in " + certificate_file};
  }
  return std::shared_ptr<TlsContext>(new TlsContext(std::move(state)));
}

Transport::Transport(int fd, const TlsContext* tls) : fd_(fd) {
  if (tls == nullptr) return;
  tls_ = std::make_unique<Tls>();
  // The session holds its own reference to the context.
  tls_->session.reset(SSL_new(tls->state_->context.get()));
  if (tls_->session != nullptr) SSL_set_fd(tls_->session.get(), fd);
}

Transport::~Transport() = default;

IoResult Transport::handshake() {
  if (tls_ == nullptr) return {};
  if (tls_->session == nullptr) return {IoStatus::kEnded};
  ERR_clear_error();
  return tls_->outcome(SSL_accept(tls_->session.get()));
}

IoResult Transport::read(std::span<char> into) {
  if (tls_ != nullptr) {
    ERR_clear_error();
    const size_t size = std::min<size_t>(into.size(), INT_MAX);
    return tls_->outcome(SSL_read(tls_->session.get(), into.data(), static_cast<int>(size)));
  }
  const ssize_t count = ::recv(fd_, into.data(), into.size(), 0);
  if (count > 0) return {IoStatus::kDone, static_cast<size_t>(count)};
  return count == 0 ? IoResult{IoStatus::kEnded} : from_errno();
}

IoResult Transport::write(std::string_view bytes) {
  if (tls_ != nullptr) {
    ERR_clear_error();
    const size_t size = std::min<size_t>(bytes.size(), INT_MAX);
    return tls_->outcome(SSL_write(tls_->session.get(), bytes.data(), static_cast<int>(size)));
  }
  const ssize_t count = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (count >= 0) return {IoStatus::kDone, static_cast<size_t>(count)};
  const IoResult result = from_errno();
  return result.status == IoStatus::kWantRead ? IoResult{IoStatus::kWantWrite} : result;
}

void Transport::finish_writing() {
  if (tls_ != nullptr && tls_->session != nullptr && SSL_is_init_finished(tls_->session.get())) {
    ERR_clear_error();
    SSL_shutdown(tls_->session.get());
    ERR_clear_error();
  }
  ::shutdown(fd_, SHUT_WR);
}

}  // namespace galley::net
