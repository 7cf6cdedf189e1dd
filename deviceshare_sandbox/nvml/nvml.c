/* An NVML without GPUs: the functions that deviceshare calls, under their real names and with the real layouts, answered
 * from a script that is read again at each call. So a process that runs can lose a GPU, or see an Xid, at any moment.
 *
 * Signatures, layouts and return codes follow nvml.h (https://docs.nvidia.com/deploy/nvml-api/). With OLD_DRIVER defined
 * it lacks what came late to NVML. */
#include <time.h>

#include "script.h"

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    UNKNOWN = 999,
};
enum { XID_CRITICAL_ERROR = 8, MAX_DEVICES = 64 };
enum { REMOTE_GPU = 0, REMOTE_SWITCH = 2 };
#define MIB (1024ULL * 1024ULL)

/* A handle is the address of one of these, the same for the same GPU as long as the process lives. */
typedef struct { char uuid[96]; } device_t;
typedef struct { bool registered[MAX_DEVICES]; long delivered; } events_t;

typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} pci_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned int version; unsigned long long total, reserved, free, used; } memory_v2_t;
typedef struct { unsigned int gpu, memory; } utilization_t;
typedef struct { unsigned int pid; unsigned long long used; unsigned int gpuInstance, computeInstance; } process_t;
typedef struct {
    device_t *device;
    unsigned long long type, data;
    unsigned int gpuInstance, computeInstance;
} event_t;

static device_t devices[MAX_DEVICES];
static int initialized;

/* What every function answers at first: not initialised, refused by the script, or the GPU is lost. */
static int refusal(const char *function, const device_t *device) {
    script_t script;
    if (!initialized) return UNINITIALIZED;
    if (first(&script, "error", function, device ? device->uuid : "") || first(&script, "error", function, ""))
        return atoi(script.word[3]);
    if (device && !first(&script, "gpu", device->uuid, NULL)) return INVALID_ARGUMENT;
    if (device && first(&script, "lost", device->uuid, NULL)) return atoi(script.word[2]);
    return SUCCESS;
}

#define ANSWER(device) \
    do { \
        int refused = refusal(__func__, device); \
        if (refused) return refused; \
    } while (0)

static device_t *handle(const char *uuid) {
    for (int i = 0; i < MAX_DEVICES; i++) {
        if (!devices[i].uuid[0]) snprintf(devices[i].uuid, sizeof devices[i].uuid, "%s", uuid);
        if (!strcmp(devices[i].uuid, uuid)) return &devices[i];
    }
    return NULL;
}

static void address(pci_t *pci, const char *text) {
    memset(pci, 0, sizeof *pci);
    sscanf(text, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
    snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, "%04X:%02X:%02X.0", pci->domain & 0xffff, pci->bus & 0xff, pci->device & 0xff);
    snprintf(pci->busId, sizeof pci->busId, "%08X:%02X:%02X.0", pci->domain, pci->bus & 0xff, pci->device & 0xff);
}

/* ---- the library ---- */

int nvmlInitWithFlags(unsigned int flags) {
    script_t script;
    (void)flags;
    if (!first(&script, "driver", NULL, NULL)) return DRIVER_NOT_LOADED;
    if (first(&script, "error", __func__, "")) return atoi(script.word[3]);
    initialized++;
    return SUCCESS;
}

int nvmlShutdown(void) {
    if (!initialized) return UNINITIALIZED;
    initialized--;
    return SUCCESS;
}

const char *nvmlErrorString(int result) {
    (void)result;
    return "An error of the script";
}

int nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    script_t script;
    ANSWER(NULL);
    if (!first(&script, "driver", NULL, NULL)) return UNKNOWN;
    snprintf(version, length, "%s", script.word[1]);
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned int *answer) {
    ANSWER(NULL);
    *answer = (unsigned int)count("gpu");
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, device_t **device) {
    ANSWER(NULL);
    script_t script = opened();
    for (unsigned int i = 0; next(&script, "gpu", NULL, NULL); i++) {
        if (i != index) continue;
        fclose(script.file);
        device_t *found = handle(script.word[1]);
        ANSWER(found);
        *device = found;
        return SUCCESS;
    }
    return INVALID_ARGUMENT;
}

int nvmlDeviceGetUUID(device_t *device, char *uuid, unsigned int length) {
    ANSWER(device);
    snprintf(uuid, length, "%s", device->uuid);
    return SUCCESS;
}

int nvmlDeviceGetName(device_t *device, char *name, unsigned int length) {
    script_t script;
    ANSWER(device);
    first(&script, "gpu", device->uuid, NULL);
    snprintf(name, length, "%s", script.word[4]);
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(device_t *device, pci_t *pci) {
    script_t script;
    ANSWER(device);
    first(&script, "gpu", device->uuid, NULL);
    address(pci, script.word[2]);
    return SUCCESS;
}

static memory_t memory(const device_t *device) {
    script_t script;
    first(&script, "gpu", device->uuid, NULL);
    unsigned long long total = strtoull(script.word[3], NULL, 10) * MIB, used = 0;
    if (first(&script, "use", device->uuid, NULL)) used = strtoull(script.word[2], NULL, 10) * MIB;
    return (memory_t){total, total - used, used};
}

int nvmlDeviceGetMemoryInfo(device_t *device, memory_t *answer) {
    ANSWER(device);
    *answer = memory(device);
    return SUCCESS;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetMemoryInfo_v2(device_t *device, memory_v2_t *answer) {
    ANSWER(device);
    if (answer->version != (sizeof *answer | 2u << 24)) return 25;
    memory_t is = memory(device);
    *answer = (memory_v2_t){answer->version, is.total, 0, is.free, is.used};
    return SUCCESS;
}
#endif

int nvmlDeviceGetUtilizationRates(device_t *device, utilization_t *answer) {
    script_t script;
    ANSWER(device);
    if (first(&script, "mig", device->uuid, NULL)) return NOT_SUPPORTED;
    bool used = first(&script, "use", device->uuid, NULL);
    *answer = (utilization_t){used ? (unsigned int)atoi(script.word[3]) : 0, 0};
    return SUCCESS;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetMigMode(device_t *device, unsigned int *current, unsigned int *pending) {
    script_t script;
    ANSWER(device);
    *current = *pending = first(&script, "mig", device->uuid, NULL);
    return SUCCESS;
}
#endif

/* ---- memory limits ---- */

#ifndef OLD_DRIVER
typedef struct { const char *group; unsigned long long soft, hard; } set_limits_t;
typedef struct { const char *group; unsigned long long soft, hard, used; } get_limits_t;

/* A file for each GPU and control group beside the script, named by the group's inode: so limits outlive the process that
 * set them, and end with their group, as the kernel's do. */
static int limits_file(const device_t *device, const char *group, char *path, size_t size) {
    script_t script;
    struct stat is;
    if (!first(&script, "limits", NULL, NULL)) return 13; /* function not found */
    if (!group || stat(group, &is)) return 6;             /* not found */
    mkdir(script.word[1], 0755);
    snprintf(path, size, "%s/%s@%llu", script.word[1], device->uuid, (unsigned long long)is.st_ino);
    return SUCCESS;
}

int nvmlDeviceGetMemoryLimits_v1(device_t *device, get_limits_t *answer) {
    char path[512];
    ANSWER(device);
    int refused = limits_file(device, answer->group, path, sizeof path);
    if (refused) return refused;
    answer->soft = 0, answer->hard = ~0ULL, answer->used = 0;
    FILE *file = fopen(path, "r");
    if (file && fscanf(file, "%llu %llu %llu", &answer->soft, &answer->hard, &answer->used) < 2) answer->hard = ~0ULL;
    if (file) fclose(file);
    return SUCCESS;
}

int nvmlDeviceSetMemoryLimits_v1(device_t *device, const set_limits_t *wanted) {
    char path[512], draft[520];
    ANSWER(device);
    int refused = limits_file(device, wanted->group, path, sizeof path);
    if (refused) return refused;
    if (wanted->soft > wanted->hard) return INVALID_ARGUMENT;
    get_limits_t before = {.group = wanted->group};
    nvmlDeviceGetMemoryLimits_v1(device, &before);
    snprintf(draft, sizeof draft, "%s.new", path);
    FILE *file = fopen(draft, "w");
    if (!file) return 4; /* no permission */
    fprintf(file, "%llu %llu %llu %s\n", wanted->soft, wanted->hard, before.used, wanted->group);
    fclose(file);
    return rename(draft, path) ? UNKNOWN : SUCCESS;
}
#endif

int nvmlDeviceGetHandleByUUID(const char *uuid, device_t **device) {
    script_t script;
    ANSWER(NULL);
    if (!first(&script, "gpu", uuid, NULL)) return 6; /* not found */
    device_t *found = handle(uuid);
    ANSWER(found);
    *device = found;
    return SUCCESS;
}

/* ---- links ---- */

static int remote(const device_t *device, unsigned int link, script_t *script) {
    *script = opened();
    for (unsigned int i = 0; next(script, "nvlink", device->uuid, NULL); i++) {
        if (i != link) continue;
        fclose(script->file);
        return SUCCESS;
    }
    return INVALID_ARGUMENT;
}

int nvmlDeviceGetNvLinkState(device_t *device, unsigned int link, unsigned int *active) {
    script_t script;
    ANSWER(device);
    int missing = remote(device, link, &script);
    if (missing) return missing;
    *active = strcmp(script.word[3], "off") != 0;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(device_t *device, unsigned int link, pci_t *pci) {
    script_t script;
    ANSWER(device);
    int missing = remote(device, link, &script);
    if (missing) return missing;
    address(pci, script.word[2]);
    return SUCCESS;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetNvLinkRemoteDeviceType(device_t *device, unsigned int link, unsigned int *type) {
    script_t script;
    ANSWER(device);
    int missing = remote(device, link, &script);
    if (missing) return missing;
    *type = strcmp(script.word[3], "switch") ? REMOTE_GPU : REMOTE_SWITCH;
    return SUCCESS;
}
#endif

int nvmlDeviceGetTopologyCommonAncestor(device_t *one, device_t *other, unsigned int *level) {
    script_t script;
    ANSWER(one);
    ANSWER(other);
    if (!first(&script, "ancestor", one->uuid, other->uuid) && !first(&script, "ancestor", other->uuid, one->uuid))
        return NOT_SUPPORTED;
    *level = (unsigned int)atoi(script.word[3]);
    return SUCCESS;
}

/* ---- processes ---- */

static int processes(const device_t *device, const char *kind, unsigned int *size, process_t *answer) {
    script_t script = opened();
    unsigned int room = *size, found = 0;
    while (next(&script, "process", device->uuid, kind)) {
        if (answer && found < room) {
            bool known = strcmp(script.word[4], "-") != 0;
            unsigned long long used = known ? strtoull(script.word[4], NULL, 10) * MIB : ~0ULL;
            answer[found] = (process_t){(unsigned int)atoi(script.word[3]), used, ~0u, ~0u};
        }
        found++;
    }
    *size = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

#ifdef OLD_DRIVER
#define PROCESSES(name) name##_v2
#else
#define PROCESSES(name) name##_v3
#endif

int PROCESSES(nvmlDeviceGetComputeRunningProcesses)(device_t *device, unsigned int *size, process_t *answer) {
    ANSWER(device);
    return processes(device, "compute", size, answer);
}

int PROCESSES(nvmlDeviceGetGraphicsRunningProcesses)(device_t *device, unsigned int *size, process_t *answer) {
    ANSWER(device);
    return processes(device, "graphics", size, answer);
}

int PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses)(device_t *device, unsigned int *size, process_t *answer) {
    ANSWER(device);
    return processes(device, "mps", size, answer);
}

/* ---- events ---- */

int nvmlEventSetCreate(events_t **set) {
    ANSWER(NULL);
    *set = calloc(1, sizeof **set);
    (*set)->delivered = count("xid"); /* What happened before doesn't come again. */
    return SUCCESS;
}

int nvmlEventSetFree(events_t *set) {
    ANSWER(NULL);
    free(set);
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(device_t *device, unsigned long long types, events_t *set) {
    ANSWER(device);
    if (types & ~(unsigned long long)XID_CRITICAL_ERROR) return NOT_SUPPORTED;
    set->registered[device - devices] = true;
    return SUCCESS;
}

/* The next Xid on a registered GPU; a lost one counts only when there is none. */
static int pending(events_t *set, event_t *event) {
    script_t script = opened();
    for (long i = 0; next(&script, "xid", NULL, NULL); i++) {
        device_t *device = handle(script.word[1]);
        if (i < set->delivered) continue;
        set->delivered = i + 1;
        if (!set->registered[device - devices]) continue;
        *event = (event_t){device, XID_CRITICAL_ERROR, strtoull(script.word[2], NULL, 10), ~0u, ~0u};
        fclose(script.file);
        return SUCCESS;
    }
    for (int i = 0; i < MAX_DEVICES; i++)
        if (set->registered[i] && first(&script, "lost", devices[i].uuid, NULL)) return atoi(script.word[2]);
    return TIMEOUT;
}

int nvmlEventSetWait_v2(events_t *set, event_t *event, unsigned int timeout) {
    const struct timespec pause = {0, 10 * 1000 * 1000};
    stamp_t before = {0};
    ANSWER(NULL);
    for (unsigned int waited = 0;; waited += 10) {
        /* Waiting costs nothing, as with the real one: tests measure what an agent at rest needs. */
        stamp_t now = stamp();
        int result = same(before, now) ? TIMEOUT : pending(set, event);
        if (result != TIMEOUT || waited >= timeout) return result;
        before = now;
        nanosleep(&pause, NULL);
    }
}
