/*
 * Compares the logits that two runs of the engine wrote, step by step.
 *
 *     compare_logits VOCABULARY TOLERANCE REFERENCE CANDIDATE...
 *
 * With a tolerance of 0 the files are the same bytes. Otherwise no logit differs by more, for as long as
 * both runs chose the same tokens. Where they part, the reference's two likeliest tokens must lie so
 * close together that the tolerance explains it; what follows is about different texts.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct logits {
    double *values;
    size_t steps;
};

static struct logits load(const char *path, size_t vocabulary) {
    FILE *file = fopen(path, "rbe");
    long bytes = 0;
    struct logits logits = {NULL, 0};
    if (!file || fseek(file, 0, SEEK_END) || (bytes = ftell(file)) <= 0) {
        perror(path);
        exit(1);
    }
    rewind(file);
    logits.steps = (size_t)bytes / sizeof(double) / vocabulary;
    logits.values = malloc((size_t)bytes);
    if (!logits.values || logits.steps * vocabulary * sizeof(double) != (size_t)bytes ||
        fread(logits.values, 1, (size_t)bytes, file) != (size_t)bytes) {
        fprintf(stderr, "%s: not whole steps of %zu logits\n", path, vocabulary);
        exit(1);
    }
    fclose(file);
    return logits;
}

static size_t likeliest(const double *logits, size_t vocabulary, size_t except) {
    size_t best = except == 0 ? 1 : 0;
    for (size_t i = 0; i < vocabulary; i++)
        if (i != except && logits[i] > logits[best]) best = i;
    return best;
}

static int compare(const struct logits *a, const struct logits *b, size_t vocabulary,
                   double tolerance, const char *name) {
    double most = 0;
    size_t step = 0;
    if (a->steps != b->steps && tolerance == 0) {
        printf("%s: %zu steps, expected %zu\n", name, b->steps, a->steps);
        return 1;
    }
    for (; step < a->steps && step < b->steps; step++) {
        const double *x = a->values + step * vocabulary, *y = b->values + step * vocabulary;
        if (tolerance == 0 && memcmp(x, y, vocabulary * sizeof *x) != 0) {
            printf("%s: other bits in step %zu\n", name, step);
            return 1;
        }
        for (size_t i = 0; i < vocabulary; i++) {
            const double difference = fabs(x[i] - y[i]);
            if (!(difference <= tolerance)) { /* a NaN is no equal either */
                printf("%s: step %zu, logit %zu: %.9g, expected %.9g within %g\n", name, step, i,
                       y[i], x[i], tolerance);
                return 1;
            }
            if (difference > most) most = difference;
        }
        const size_t first = likeliest(x, vocabulary, vocabulary);
        if (likeliest(y, vocabulary, vocabulary) == first) continue;
        const double gap = x[first] - x[likeliest(x, vocabulary, first)];
        printf("%s: another token in step %zu, where the two likeliest are %g apart\n", name, step,
               gap);
        if (gap > 2 * tolerance) return 1;
        break;
    }
    printf("%s: %zu steps, largest difference %.3g\n", name, step, most);
    return step == 0;
}

int main(int argc, char **argv) {
    if (argc < 5) return 2;
    const size_t vocabulary = strtoull(argv[1], NULL, 10);
    const double tolerance = strtod(argv[2], NULL);
    const struct logits reference = load(argv[3], vocabulary);
    int bad = 0;
    for (int i = 4; i < argc; i++) {
        const struct logits candidate = load(argv[i], vocabulary);
        bad |= compare(&reference, &candidate, vocabulary, tolerance, argv[i]);
        free(candidate.values);
    }
    free(reference.values);
    return bad;
}
