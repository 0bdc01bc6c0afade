/* libjpeg-turbo's scanline interface, safe to call from Rust.
 *
 * libjpeg reports errors by a function that must not return. Here it uses longjmp to return to the
 * entry point, which returns a code; no Rust frame is skipped. The reason is in `message`. Warnings
 * (damaged entropy data that can still be decoded) are ignored, and missing bytes are an error, as
 * in Pillow.
 */

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <jpeglib.h>

#include <jerror.h>

enum { DONE = 0, FAILED = 1, TRUNCATED = 2 };

/* Progressive files have about ten scans. A hostile one has thousands, and each one visits all
 * coefficients. The limit is that of libjpeg-turbo's own fuzzers. */
#define MAX_SCANS 500

typedef struct {
  struct jpeg_decompress_struct info;
  struct jpeg_error_mgr errors;
  struct jpeg_source_mgr source;
  struct jpeg_progress_mgr progress;
  jmp_buf escape;
  int code;
  char message[JMSG_LENGTH_MAX];
} belady_jpeg;

typedef struct {
  uint32_t width;
  uint32_t height;
  uint32_t components;
  /* The horizontal sampling ratio of the finest to the coarsest component. */
  uint32_t horizontal_sampling;
  /* 0 or 1. */
  uint32_t many_scans;
  /* Bytes read so far. */
  size_t consumed;
} belady_jpeg_header;

static void fail(j_common_ptr info)
{
  belady_jpeg *self = info->client_data;
  info->err->format_message(info, self->message);
  if (self->code == DONE)
    self->code = FAILED;
  longjmp(self->escape, 1);
}

static void ignore_message(j_common_ptr info) { (void)info; }

static void ignore_level(j_common_ptr info, int level)
{
  (void)level;
  if (level < 0)
    info->err->num_warnings++;
}

static void ignore_source(j_decompress_ptr info) { (void)info; }

static boolean no_more_bytes(j_decompress_ptr info)
{
  ((belady_jpeg *)info->client_data)->code = TRUNCATED;
  ERREXIT(info, JERR_INPUT_EOF);
  return FALSE;
}

static void skip_bytes(j_decompress_ptr info, long count)
{
  if (count <= 0)
    return;
  if ((size_t)count > info->src->bytes_in_buffer)
    no_more_bytes(info);
  info->src->next_input_byte += count;
  info->src->bytes_in_buffer -= count;
}

static void count_scans(j_common_ptr info)
{
  belady_jpeg *self = info->client_data;
  if (self->info.input_scan_number <= MAX_SCANS)
    return;
  snprintf(self->message, sizeof self->message, "it has more than %d scans", MAX_SCANS);
  self->code = FAILED;
  longjmp(self->escape, 1);
}

void belady_jpeg_free(belady_jpeg *self)
{
  jpeg_destroy_decompress(&self->info);
  free(self);
}

static int create(belady_jpeg *self)
{
  if (setjmp(self->escape))
    return self->code;
  /* Keeps err and client_data, clears the rest. */
  jpeg_create_decompress(&self->info);
  return DONE;
}

/* Returns NULL if memory cannot be allocated. */
belady_jpeg *belady_jpeg_new(void)
{
  belady_jpeg *self = calloc(1, sizeof(belady_jpeg));
  if (self == NULL)
    return NULL;
  self->info.err = jpeg_std_error(&self->errors);
  self->errors.error_exit = fail;
  self->errors.output_message = ignore_message;
  self->errors.emit_message = ignore_level;
  self->info.client_data = self;
  if (create(self) != DONE) {
    belady_jpeg_free(self);
    return NULL;
  }
  self->source.init_source = ignore_source;
  self->source.fill_input_buffer = no_more_bytes;
  self->source.skip_input_data = skip_bytes;
  self->source.resync_to_restart = jpeg_resync_to_restart;
  self->source.term_source = ignore_source;
  self->info.src = &self->source;
  self->progress.progress_monitor = count_scans;
  self->info.progress = &self->progress;
  return self;
}

const char *belady_jpeg_message(const belady_jpeg *self) { return self->message; }

/* Releases an image's memory and its bytes. */
void belady_jpeg_close(belady_jpeg *self)
{
  jpeg_abort_decompress(&self->info);
  self->source.next_input_byte = NULL;
  self->source.bytes_in_buffer = 0;
}

/* Reads up to the first scan. The bytes must stay valid until belady_jpeg_close. */
int belady_jpeg_open(belady_jpeg *self, const uint8_t *bytes, size_t length,
                     belady_jpeg_header *header)
{
  self->code = DONE;
  if (setjmp(self->escape))
    return self->code;
  self->source.next_input_byte = bytes;
  self->source.bytes_in_buffer = length;
  jpeg_read_header(&self->info, TRUE);
  header->width = self->info.image_width;
  header->height = self->info.image_height;
  header->components = (uint32_t)self->info.num_components;
  header->horizontal_sampling = 1;
  for (int at = 0; at < self->info.num_components; at++)
    if ((uint32_t)self->info.comp_info[at].h_samp_factor > header->horizontal_sampling)
      header->horizontal_sampling = (uint32_t)self->info.comp_info[at].h_samp_factor;
  header->many_scans = jpeg_has_multiple_scans(&self->info) ? 1 : 0;
  header->consumed = length - self->source.bytes_in_buffer;
  return DONE;
}

/* Starts to decode to 1 (grey), 3 (RGB) or 4 (CMYK) channels, at 1 / `shrink` (1, 2, 4 or 8) of the
 * size; the other arguments are in pixels of that size. If *width is less than the whole, only
 * columns from *left on are decoded: *left moves to the start of a block, and *width grows by as
 * much. Rows above `top` are skipped. */
int belady_jpeg_start(belady_jpeg *self, uint32_t channels, uint32_t shrink, uint32_t *left,
                      uint32_t *width, uint32_t top)
{
  if (setjmp(self->escape))
    return self->code;
  self->info.out_color_space = channels == 1 ? JCS_GRAYSCALE : channels == 3 ? JCS_RGB : JCS_CMYK;
  self->info.scale_num = 1;
  self->info.scale_denom = shrink;
  self->info.dct_method = JDCT_ISLOW;
  self->info.do_fancy_upsampling = TRUE;
  jpeg_start_decompress(&self->info);
  if (*width < self->info.output_width) {
    JDIMENSION from = *left, count = *width;
    jpeg_crop_scanline(&self->info, &from, &count);
    *left = from;
    *width = count;
  }
  if (top > 0)
    jpeg_skip_scanlines(&self->info, top);
  return DONE;
}

/* Decodes rows that are `stride` bytes apart. */
int belady_jpeg_read(belady_jpeg *self, uint8_t *into, size_t stride, uint32_t rows)
{
  if (setjmp(self->escape))
    return self->code;
  JDIMENSION first = self->info.output_scanline;
  while (self->info.output_scanline - first < rows) {
    JSAMPROW next[4];
    JDIMENSION done = self->info.output_scanline - first, count = 0;
    for (; count < 4 && done + count < rows; count++)
      next[count] = into + (size_t)(done + count) * stride;
    if (jpeg_read_scanlines(&self->info, next, count) == 0)
      no_more_bytes(&self->info);
  }
  return DONE;
}
